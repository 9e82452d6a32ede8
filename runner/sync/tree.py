"""Gradients summed over one fixed binary tree: the same bits on 1, 2, 4 and 8 processes.

The leaves of the tree are a window's micro-batches, in order. Inside a process partial sums wait on a stack until
their neighbours are there; across processes the sums of neighbours, of pairs of neighbours and so on are exchanged and
added (recursive doubling). Where `accum` has an odd factor m, groups of m leaves are added one after another first:
every process holds whole groups, whatever the split.

A leaf that is missing (a short window) or that did not use a parameter counts as -0.0, the one number whose sum with
any other is that other to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.errors import TaskError
from runner.plan import CARRIER_ELEMENTS, TREE_BUCKET_BYTES
from runner.sync.objective import Objective
from runner.sync.whole import Whole


@dataclass(frozen=True, slots=True)
class _Sum:
    """A gradient of the whole model in one piece, its parts as the parameters see them, and the leaves in it."""

    flat: Tensor
    views: list[Tensor]
    leaves: int = 0


def neighbours(below: int, top: int, odd: int) -> bool:
    """Whether sums of so many leaves, one after the other, are added now: in groups of `odd`, then in pairs of equals."""
    return (top == 1 and below < odd) or (below == top and below % odd == 0)


class Tree(Whole):
    """The whole model on every process. In a window's last backward a bucket of gradients is sent as soon as it is
    complete, while the rest is still computed."""

    averaged_over = 1

    def __init__(self, objective: Objective, rank: int, processes: int, accum: int):
        self.collectives = 0
        self.bytes = 0
        self._objective, self._rank, self._processes = objective, rank, processes
        self._odd = accum // (accum & -accum)
        parameters = [p for p in objective.model.parameters() if p.requires_grad]
        self._narrow = any(p.dtype != objective.carrier.dtype for p in parameters)
        if any(p.is_complex() for p in parameters):
            raise TaskError(
                "seeding=bitwise and precision.weights=bf16 add real numbers only; the model has complex parameters"
            )
        self._parameters = parameters[::-1]  # about the order in which a backward reaches them
        self._size = sum(p.numel() for p in parameters) + CARRIER_ELEMENTS
        self._leaf: _Sum | None = None  # what the parameters' gradients are now
        self._stack: list[_Sum] = []
        self._free: list[_Sum] = []
        self._buckets = _Buckets(self._parameters, self._size, objective.carrier.element_size())
        self._sender = _Sender(objective.carrier.device) if processes > 1 else None
        self._missing: list[int] = []  # parameters that each bucket still waits for; empty: nothing is sent now
        self._sent = 0
        self._sending = False  # from a window's last backward until it is finished
        if processes > 1 or self._narrow:
            for index, p in enumerate(self._parameters):
                p.register_post_accumulate_grad_hook(lambda _, index=index: self._arrived(index))  # type: ignore[no-untyped-call]

    @property
    def reductions(self) -> int:
        return self.collectives

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        leaf = self._leaf = self._leaf or self._fresh()
        total, weight = self._objective(batch)
        sums = self._objective.take()
        if batch is not None:
            leaf.flat[-CARRIER_ELEMENTS:] += sums
        return total, weight

    def backward(self, total: Tensor, last: bool) -> None:
        if last and self._sender is not None:
            self._missing, self._sent, self._sending = list(self._buckets.parameters), 0, True
        if total.requires_grad:  # a process without items has nothing to compute
            total.backward()  # type: ignore[no-untyped-call]
        if not last:
            self._push()
            return
        self._missing = []
        self._send(len(self._buckets.slices) if self._sender is not None else 0)

    def abandon(self) -> None:
        self._leaf = self._leaf or self._fresh()
        if self._sender is not None:
            if not self._sending:
                self._sent = 0
            self._missing = []
            self._send(len(self._buckets.slices))

    def reset(self) -> None:
        self._objective.take()

    def finish(self) -> tuple[Tensor, Tensor]:
        leaf, self._leaf = self._leaf, None
        assert leaf is not None, "no micro-batch of the window was passed"
        self._sending = False
        if self._sender is not None:
            self._sender.wait()
        else:
            self._join(leaf, slice(None))
        self._free += [*self._stack, leaf]
        self._stack = []
        total, weight = leaf.flat[-CARRIER_ELEMENTS:].clone()
        return total, weight

    def _fresh(self) -> _Sum:
        """A sum of nothing, as the gradients of all parameters: what a backward adds to it stays as it is."""
        if self._free:
            made = self._free.pop()
        else:
            flat = torch.empty(self._size, dtype=self._objective.carrier.dtype, device=self._objective.carrier.device)
            parts = flat[:-CARRIER_ELEMENTS].split([p.numel() for p in self._parameters])  # type: ignore[no-untyped-call]
            made = _Sum(flat, [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)])
        made.flat.fill_(-0.0)
        for p, view in zip(self._parameters, made.views, strict=True):
            if self._narrow:
                p.summed = view  # type: ignore[attr-defined]
            else:
                p.grad = view
        return made

    def _push(self) -> None:
        """The leaf's backward is done: add it to what it belongs to, and keep the sum."""
        assert self._leaf is not None
        top = _Sum(self._leaf.flat, self._leaf.views, 1)
        while self._stack and neighbours(self._stack[-1].leaves, top.leaves, self._odd):
            below = self._stack.pop()
            below.flat.add_(top.flat)
            self._free.append(top)
            top = _Sum(below.flat, below.views, below.leaves + top.leaves)
        self._stack.append(top)
        self._leaf = None

    def _join(self, leaf: _Sum, part: slice) -> Tensor:
        """A part of this process's sum: the last leaf and all that waits on the stack, the nearest first."""
        mine = leaf.flat[part]
        for waiting in reversed(self._stack):
            mine.add_(waiting.flat[part])
        return mine

    def _arrived(self, index: int) -> None:
        """A parameter's gradient is there; in a window's last backward, send what is complete."""
        if self._narrow:
            parameter = self._parameters[index]
            assert self._leaf is not None and parameter.grad is not None
            self._leaf.views[index].add_(parameter.grad)
            parameter.grad = None
        if not self._missing:
            return
        for bucket in self._buckets.of[index]:
            if bucket < self._sent:
                raise TaskError(
                    "seeding=bitwise: a parameter got its gradient in more than one part of a backward, as under "
                    "checkpoint(use_reentrant=True). Use use_reentrant=False, or seeding=exact"
                )
            self._missing[bucket] -= 1
        ready = self._sent
        while ready < len(self._missing) and self._missing[ready] == 0:
            ready += 1
        self._send(ready)

    def _send(self, until: int) -> None:
        """Hand the buckets up to `until` to the sender: in the same order on every process."""
        for part in self._buckets.slices[self._sent : until]:
            assert self._sender is not None and self._leaf is not None
            self.collectives += 1
            self.bytes += self._times * (part.stop - part.start) * self._leaf.flat.element_size()
            self._sender.start(lambda leaf=self._leaf, part=part: self._exchange(self._join(leaf, part)))
        self._sent = max(self._sent, until)

    @property
    def _times(self) -> int:
        """How often a process sends its gradient in an update."""
        return self._processes.bit_length() - 1

    def _exchange(self, mine: Tensor) -> None:
        """Recursive doubling: after the step with distance d, 2d neighbouring processes hold the same sum."""
        theirs = torch.empty_like(mine)
        for peer in self._peers():
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)])
            for work in works:
                work.wait()
            mine.add_(theirs)

    def _peers(self) -> Iterator[int]:
        distance = 1
        while distance < self._processes:
            yield self._rank ^ distance
            distance *= 2


class Line(Tree):
    """The same for weights of a lower precision than their sums, in no order to rely on: micro-batches one after another,
    then torch's own reduction."""

    def _push(self) -> None:
        """What comes next is added to the same sum."""

    @property
    def _times(self) -> int:
        return 1

    def _exchange(self, mine: Tensor) -> None:
        dist.all_reduce(mine)


def summed(parameter: nn.Parameter) -> Tensor | None:
    """What an update is made of: beside a parameter of a lower precision its own sum, else its gradient."""
    found: Tensor | None = getattr(parameter, "summed", parameter.grad)
    return found


@torch.no_grad()
def narrow(parameters: list[nn.Parameter]) -> None:
    """Give an optimizer of low-precision weights the gradients in their precision."""
    for p in parameters:
        total = summed(p)
        p.grad = None if total is None else total.to(p.dtype)


class _Buckets:
    """The flat gradient, cut into pieces of equal size; which parameters lie in which."""

    def __init__(self, parameters: list[nn.Parameter], size: int, element: int):
        length = TREE_BUCKET_BYTES // element
        self.slices = [slice(start, min(start + length, size)) for start in range(0, size, length)]
        self.of: list[range] = []  # the buckets of each parameter
        self.parameters = [0] * len(self.slices)  # how many lie in each, wholly or in part
        start = 0
        for p in parameters:
            end = start + p.numel()
            self.of.append(range(start // length, -(-end // length)) if p.numel() else range(0))
            for bucket in self.of[-1]:
                self.parameters[bucket] += 1
            start = end


class _Sender:
    """Runs exchanges beside the backward: on a thread, on a GPU on a stream of its own."""

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(1, "samestep-tree") if self._stream is None else None
        self._running: list[Future[None]] = []

    def start(self, exchange: Any) -> None:
        if self._thread is not None:
            self._running.append(self._thread.submit(exchange))
            return
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            exchange()

    def wait(self) -> None:
        """Until everything that was started is done. Raises what went wrong in it."""
        running, self._running = self._running, []
        for future in running:
            future.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
