"""The CPU: time by the clock; memory by what the process holds beyond what it began with."""

from __future__ import annotations

import resource
import sys
from time import perf_counter

import torch

_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux (getrusage(2))


class Cpu:
    """A process on the CPU. Nothing is queued, so a mark is the time at which it was made."""

    device = torch.device("cpu")
    collectives = "gloo"
    reading_waits = False

    def __init__(self) -> None:
        self._began = _peak()

    def mark(self) -> float:
        return perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def peak_memory(self) -> int:
        """The peak of the process's resident memory in bytes, less what it held when it began.

        Every run has processes of its own, so the peak of an earlier run does not show; within a run it
        never falls.
        """
        return _peak() - self._began

    def reset_peak(self) -> None:
        """The system keeps one peak for a process's whole life."""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
