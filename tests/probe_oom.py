"""A task that runs out of memory where a test wants it to."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runner import loop
from runner.losses import Losses
from runner.retry import Retry
from tests.probe_memory import Wide

KINDS: dict[str, BaseException] = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
    "python": MemoryError(),
    "other": RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
}


class Tight(Wide):
    """The process `rank` has no memory from its `first` pass on (counted from 1) for more than `room` items at once:
    `where` in the loss, or inside the backward, behind the layer `layer`. With batch normalization, whose statistics a
    broken window must not move twice. `where="limit"`: really, by a limit of the system; `room` is ignored."""

    def __init__(
        self, room: int, rank: int = 0, first: int = 1, where: str = "forward", kind: str = "cuda", layer: int = 1,
        width: int = 16, depth: int = 3, items: int = 48, norm: bool = True, fault: str | None = None,
    ):  # fmt: skip
        super().__init__(width, depth, items)
        if fault is not None and multiprocessing.parent_process() is not None:
            globals()[fault]()
        self.room, self.rank, self.first, self.where, self.kind, self.layer = room, rank, first, where, kind, layer
        self.norm, self.passes = norm, 0

    def model(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(self.width, self.width) for _ in range(self.depth)]
        layers[self.layer].register_forward_hook(lambda *a: self._broken(a[2]))
        return nn.Sequential(*([nn.BatchNorm1d(self.width)] if self.norm else []), *layers)

    def collate(self, items: list[int]) -> Tensor:
        return torch.stack([torch.sin(torch.arange(self.width) * (1.0 + i)) for i in items])

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        self.passes += 1
        if self.where == "limit":
            self._fill(len(batch))
        total = (model(batch) ** 2).sum()
        if self.where == "forward" and self._tight(len(batch)):
            raise KINDS[self.kind]
        return total, float(len(batch))

    def _fill(self, items: int) -> None:
        """192 MiB for each item, of the 1024 that the process may still have from the first pass on."""
        if self.passes == 1:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + 2**30
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
        torch.empty(items, 3 * 2**24)  # never written: address space is what is limited

    def _tight(self, items: int) -> bool:
        return int(os.environ["RANK"]) == self.rank and self.passes >= self.first and items > self.room

    def _broken(self, out: Tensor) -> Tensor:
        if self.where == "backward" and torch.is_grad_enabled() and self._tight(len(out)):
            return _Breaks.apply(out, KINDS[self.kind])  # type: ignore[no-any-return, no-untyped-call]
        return out


class _Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, error: BaseException) -> Tensor:
        ctx.error = error
        return value.clone()

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> Any:
        raise ctx.error


# faults, planted inside a rank


def statistics_stay() -> None:
    """What a broken window did to buffers is not put back."""
    right = Retry.smaller

    def smaller(self: Retry, window: Any) -> Any:
        self._buffers = [b.clone() for b in self._model.buffers()]
        return right(self, window)

    Retry.smaller = smaller  # type: ignore[method-assign]


def rows_stay() -> None:
    """The micro-batches of a broken window keep their rows."""
    Losses.forget = lambda *_: None  # type: ignore[method-assign, assignment]


def gradients_stay() -> None:
    """What a broken window has summed is added to."""

    def start_over(t: Any, window: Any) -> None:
        t.losses.forget(window)
        t.sync.reset()
        t.batches = t.retry.smaller(window)

    loop._start_over = start_over
