"""Several processes, each with the whole model: torch's DistributedDataParallel, under one of four policies.

    accumulate     one reduction per window, in the last micro-batch; the others do not pass through DDP at all
    no_sync        the same by torch's own context around forward and backward
    every_batch    a reduction in every micro-batch
    backward_only  the context around backward alone: the known mistake. DDP decides in its forward whether to
                   reduce, so this reduces in every micro-batch, too

What was sent is counted where it is sent, in DDP's communication hook, not derived from the policy.
"""

# No postponed annotations here: DDP looks at the hook's, and wants types, not text.

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from runner.choices import SyncPolicy
from runner.errors import TaskError
from runner.sync.objective import Objective
from runner.sync.wire import Wire
from runner.sync.wired import Wired

# Buffers stay local in training (BatchNorm's statistics, say): sending them is no part of the gradient.
_LOCAL_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # torch 2.13
    else {"broadcast_buffers": False}
)


class Ddp(Wired):
    """Gradients are summed where a window is reduced once, and averaged where every micro-batch is: only an
    average, equal on all processes, can be added to before it is reduced again. The loss total and weight are
    sums in either case, exact for counts: they are sent multiplied by what the average divides by."""

    def __init__(self, objective: Objective, policy: SyncPolicy, processes: int, bucket_bytes: int, wire: Wire):
        self._wire = wire
        self._exact: tuple[Any, Tensor] | None = None  # the window's loss total and weight, beside a narrow bucket
        self._objective, self._policy, self._processes = objective, policy, processes
        self._averages = policy in (SyncPolicy.every_batch, SyncPolicy.backward_only)
        self.averaged_over = processes if self._averages else 1
        self._sums = torch.zeros_like(objective.carrier.detach())
        self._bucket_bytes = bucket_bytes
        self._begun = False  # whether a window's last backward has
        self._ddp = self._wrapped()

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        self._objective.carrying = self.averaged_over if last or self._averages else 0
        if self._policy is SyncPolicy.accumulate and not last:
            return self._objective(batch)  # type: ignore[no-any-return]
        with _explained(), self._unsynced(not last and self._policy is SyncPolicy.no_sync):
            return self._ddp(batch)  # type: ignore[no-any-return]

    def backward(self, total: Tensor, last: bool) -> None:
        if last:
            self._wire.works, self._begun = [], True
        with _explained(), self._unsynced(not last and self._policy in (SyncPolicy.no_sync, SyncPolicy.backward_only)):
            total.backward()  # type: ignore[no-untyped-call]
        if self._objective.carrying:
            carrier = self._objective.carrier
            if carrier.grad is None:
                raise TaskError("the micro-batch's loss does not depend on the model: nothing was reduced")
            if self._exact is not None:
                work, exact = self._exact
                work.wait()
                self._sums += exact
                self._exact = None
            else:
                self._sums += carrier.grad
            carrier.grad = None  # a sum that stayed would be sent again with the next

    def finish(self) -> tuple[Tensor, Tensor]:
        self._wire.close()
        total, weight = self._sums.clone()
        self._sums.zero_()
        self._begun = False
        return total, weight

    def abandon(self) -> None:
        """Where the last backward has not begun, a pass without items does what is expected. One that broke off has sent
        its first buckets, and the others wait for the rest."""
        self._objective.take()
        if not self._begun:
            self.backward(self.forward(None, True)[0], True)
            return
        for work in self._wire.works:
            work.wait()
        for bucket in self._ddp.reducer._get_zeros_like_grad_buckets()[len(self._wire.works) :]:
            dist.all_reduce(bucket.buffer())

    def reset(self) -> None:
        """A reducer that was broken off never recovers, and buckets must be the same everywhere: all make new ones."""
        self._objective.take()
        self._objective.carrier.grad = None
        self._wire.works = []
        self.release()  # first, with its buckets
        self._ddp = self._wrapped()

    def release(self) -> None:
        """Let go of torch's DDP and its buckets. It holds this object in its hook, in C++, where no garbage collector
        sees the circle."""
        del self._ddp

    def _wrapped(self) -> DistributedDataParallel:
        made = DistributedDataParallel(
            self._objective,
            init_sync=False,  # the worker has shared the model, in any format
            bucket_cap_mb=self._bucket_bytes / 2**20,  # of the first bucket, too, which by default has 1 MiB
            gradient_as_bucket_view=True,
            **_LOCAL_BUFFERS,
        )
        made.register_comm_hook(None, self._reduce)
        return made

    @property
    def reductions(self) -> int:
        return self._wire.collectives

    def _unsynced(self, wanted: bool) -> AbstractContextManager[object]:
        return self._ddp.no_sync() if wanted else nullcontext()

    def _reduce(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        """DDP's communication hook: sum a bucket over all processes, and count it."""
        buffer = bucket.buffer()
        if self._wire.narrow:
            self._send_carrier(bucket)
        if self._averages:
            buffer.div_(self._processes)
        return self._wire.send(buffer)

    def _send_carrier(self, bucket: dist.GradBucket) -> None:  # type: ignore[name-defined]
        """The loss total and weight by themselves, in full, if they are in this bucket: they are no gradient."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter is self._objective.carrier:
                values = gradient.clone()
                gradient.zero_()  # what stays in the bucket must not choose the gradients' scale
                self._exact = (self._wire.tell(values), values)


@contextmanager
def _explained() -> Iterator[None]:
    """DDP's own errors about what a task may not do, in terms of the task."""
    try:
        yield
    except RuntimeError as error:
        if "mark a variable ready only once" in str(error):
            raise TaskError(
                "a backward ran inside the backward, as torch.utils.checkpoint does with use_reentrant=True; several "
                "processes cannot reduce that. Use use_reentrant=False"
            ) from error
        raise
