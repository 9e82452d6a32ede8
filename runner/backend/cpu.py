"""The CPU: time by the clock, memory by the tensors that operations make."""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter

import torch

from runner.backend.meter import Meter


class Cpu:
    """A process on the CPU. Nothing is queued, so a mark is the time at which it was made."""

    device = torch.device("cpu")
    collectives = "gloo"
    reading_waits = False
    measuring_slows = True

    def __init__(self) -> None:
        self._meter = Meter()

    def mark(self) -> float:
        return perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def measuring(self, held: list[torch.Tensor]) -> AbstractContextManager[object]:
        self._meter.hold(held)
        self._meter.restart()
        return self._meter

    def peak_memory(self) -> int:
        return self._meter.peak
