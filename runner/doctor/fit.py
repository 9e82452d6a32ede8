"""Latency and bandwidth from a sweep of all-reduces, and link.yaml, which says them as a link of the configuration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunnerError
from runner.predict.allreduce import GOODPUT, HOP
from runner.predict.allreduce import Path as Way

HEADER = "# Measured by python -m runner doctor"
FEWEST = 3  # sizes that two numbers are fitted to


@dataclass(frozen=True, slots=True)
class Measured:
    """A sweep: (bytes, seconds of an all-reduce) by `processes` in a ring, and the line through them."""

    processes: int
    points: tuple[tuple[int, float], ...]
    way: Way
    worst: float  # relative distance of a point from the line

    @property
    def mbit(self) -> float:
        return self.way.rate * 8 / 1e6


def fit(processes: int, points: Sequence[tuple[int, float]]) -> Measured:
    """The line seconds = latency + bytes / bandwidth nearest to all points, each weighed by its own seconds, so that small and
    large ones count alike. Neither number comes out negative. Raises RunnerError for fewer than three points."""
    if len(points) < FEWEST:
        raise RunnerError(f"{len(points)} sizes were measured, too few to tell latency from bandwidth")
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    size = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    time_ = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - size) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    slope = sum(w * (n - size) * (s - time_) for w, (n, s) in zip(weights, points, strict=True)) / spread
    start = time_ - slope * size
    if slope <= 0:  # no bandwidth can be seen in these sizes: take what the largest shows at least
        n, s = max(points)
        slope, start = s / n, min(s for _, s in points)
    elif start < 0:
        slope = sum(w * n * s for w, (n, s) in zip(weights, points, strict=True)) / sum(
            w * n * n for w, (n, _) in zip(weights, points, strict=True)
        )
        start = 0.0
    steps = 2 * (processes - 1)
    way = Way(start / steps, steps / processes / slope)
    worst = max(abs(start + slope * n - s) / s for n, s in points)
    return Measured(processes, tuple(points), way, worst)


def link_yaml(measured: Measured, between: str) -> str:
    """The measured way as a link: the rate that has this goodput, the delay that has this latency."""
    rate = measured.mbit / GOODPUT
    delay = max(0.0, measured.way.alpha - HOP) * 1e3
    sizes = f"{measured.points[0][0]} to {measured.points[-1][0]:,} bytes"
    return (
        f"{HEADER} on {time.strftime('%Y-%m-%d')} {between}.\n"
        f"# All-reduces of {sizes}: {measured.way.alpha * 1e3:.3f} ms a message and {measured.mbit:.1f} Mbit/s, within "
        f"{measured.worst:.0%} of each.\n"
        f"name: measured\n"
        f"rate: {rate:.1f}       # Mbit/s, of which {GOODPUT} arrive\n"
        f"delay: {delay:.4f}     # ms, one way, beside the {HOP * 1e3:g} ms of every message\n"
    )


def write_link(path: Path, text: str) -> None:
    """Write link.yaml. Raises RunnerError where something else has that name."""
    try:
        if path.exists() and not path.read_text(errors="replace").startswith(HEADER):
            raise RunnerError(f"{path} is there, and not from a doctor: name another file by out=FILE")
        path.write_text(text)
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be written: {error.strerror or error}. Name another file by out=FILE"
        ) from error
