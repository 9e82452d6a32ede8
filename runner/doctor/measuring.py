"""What a rank of a sweep does: all-reduces of growing sizes, timed. Only its own process imports this, for it needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from runner import world
from runner.doctor.sweep import CONNECT_LIMIT, MOST_REPEATS, SIZES
from runner.world import Seat


def measure(seat: dict[str, Any], budget: float, tell: Callable[[int, float], None]) -> None:
    """All-reduces of `SIZES` until `budget` seconds are over; `tell` is called with each size and its seconds. Rank 0
    decides how often a size is repeated, and where to stop, so that all do the same."""
    torch.set_num_threads(1)
    with world.join(Seat(**seat), "gloo", CONNECT_LIMIT):
        started, last = time.monotonic(), (SIZES[0], 0.0)
        for size in SIZES:
            left = budget - (time.monotonic() - started)
            expected = last[1] * size / last[0]
            if not _agreed(int(2 * expected < left)):
                return
            buffer = torch.zeros(max(1, size // 4))
            first = _timed(buffer)
            share = min(left - first, budget / len(SIZES))
            times = [_timed(buffer) for _ in range(_agreed(max(1, min(MOST_REPEATS, int(share / max(first, 1e-6))))))]
            last = (size, median(times))
            tell(*last)


def _timed(buffer: torch.Tensor) -> float:
    start = time.perf_counter()
    dist.all_reduce(buffer)
    return time.perf_counter() - start


def _agreed(number: int) -> int:
    """Rank 0's number."""
    told = torch.tensor([number])
    dist.broadcast(told, 0)
    return int(told.item())
