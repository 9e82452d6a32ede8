"""How a bucket of the gradient travels: as it is, or in a narrower format."""

# No postponed annotations: DDP looks at its hook's types, and what is here is called from there.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.choices import CompressName
from runner.plan import Plan
from runner.sync.simulated import SimulatedLink, simulated_link

HEADROOM = 2.0**6  # how much larger than the largest so far a sum may come out before it is cut
DECAY = 0.9  # of the largest so far, from window to window
STEEPEST = 126  # the largest exponent of a scale: a normal number of fp32, and so is its inverse


class Wire:
    """Sums buffers over all processes, in `kind` where that is not None, and counts what it hands over.

    fp16 has a narrow range: gradients that are small beside the largest would become zero, which Adam, for one, takes
    for something else than small. So they are multiplied by a power of two, which costs no digit, that brings the
    largest sum of the windows before to 1/64 of the range. All processes know it, and nobody waits for it. What is larger
    still is cut; what is no number stays none. The first window travels in full.
    """

    def __init__(self, processes: int, kind: torch.dtype | None = None, link: SimulatedLink | None = None):
        self.collectives = 0
        self.bytes = 0
        self.narrow = kind is not None
        self._kind, self._scales, self._link = kind, kind is torch.float16, link
        self._limit = torch.finfo(torch.float16).max / processes
        self._scale: Tensor | None = None
        self._largest: Tensor | None = None
        self._seen: list[Tensor] = []
        self.works: list[Any] = []  # of the window's last backward, in the order of its buckets

    def send(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """`buffer`, summed over all processes, once they have sent theirs."""
        if self._kind is None:
            return self._sum(buffer, _tensor)
        values = torch.view_as_real(buffer) if buffer.is_complex() else buffer
        scale = self._scale
        if self._scales and scale is None:
            sent = values
        else:
            sent = (values if scale is None else self._fitted(values, scale)).to(self._kind)

        def widen(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            if sent is not values:
                values.copy_(future.value()[0])
            if scale is not None:
                values.div_(scale)
            if self._scales:
                self._seen.append(values.abs().amax())
            return buffer

        return self._sum(sent, widen)

    def _fitted(self, values: Tensor, scale: Tensor) -> Tensor:
        """Infinities stay what they are: they tell of an overflow that is not the wire's. Those of the scaling are."""
        return torch.where(values.isinf(), values, (values * scale).clamp(-self._limit, self._limit))

    def close(self) -> None:
        """A window is over: choose the scale of the next one by the sums, which are the same on all processes."""
        self.works = []  # they hold the buckets, which DDP makes anew after the first window
        if not self._seen:
            return
        top, self._seen = torch.stack(self._seen).amax(), []
        kept = torch.where(top > 0, DECAY, 1.0)  # a window of zeros says nothing about the next
        before = torch.zeros_like(top) if self._largest is None else self._largest * kept
        self._largest = torch.where(top.isfinite(), torch.maximum(top, before), before)
        exponent = torch.floor(torch.log2(self._limit / HEADROOM / self._largest))
        wanted = torch.exp2(exponent.clamp(-STEEPEST, STEEPEST))
        self._scale = torch.where(self._largest > 0, wanted, 1.0)

    def tell(self, values: Tensor) -> Any:
        """Sum a few `values` in place, in their own format. Returns what to wait for."""
        self.collectives += 1
        self.bytes += values.numel() * values.element_size()
        work = dist.all_reduce(values, async_op=True)
        self.works.append(work)
        return work

    def _sum(self, values: Tensor, then: Callable[[Any], Tensor]) -> torch.futures.Future[Tensor]:
        reduced = self.tell(values).get_future().then(then)
        return self._link.carry(reduced, values.numel() * values.element_size()) if self._link else reduced


def wire_of(plan: Plan) -> Wire:
    """The wire that a plan asks for."""
    kinds = {CompressName.bf16: torch.bfloat16, CompressName.fp16: torch.float16}
    return Wire(plan.arithmetic.processes, kinds.get(plan.config.compress.name), simulated_link(plan))


def _tensor(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
