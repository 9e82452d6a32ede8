"""Latency and bandwidth from a sweep of all-reduces, and link.yaml, which says them as a link of the configuration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from runner.buckets import GOODPUT, TRIPS
from runner.counts import counted
from runner.doctor.sweep import FRAME
from runner.errors import RunnerError
from runner.predict.allreduce import HOP
from runner.predict.allreduce import Path as Way

HEADER = "# Measured by python -m runner doctor"
FEWEST = 3  # sizes above one packet that bandwidth is told by
LARGE = 4 * 2**20  # bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """A sweep: (bytes, seconds of an all-reduce) by `processes` in a ring, and a line near them."""

    processes: int
    points: tuple[tuple[int, float], ...]
    way: Way
    worst: float  # relative distance of a point from the line,
    where: int  # and the size of that point

    @property
    def mbit(self) -> float:
        return self.way.rate * 8 / 1e6


def fit(processes: int, points: Sequence[tuple[int, float]]) -> Measured:
    """Latency as small messages show it, bandwidth as large ones do with that latency. A line through all points would be bent
    by those in between, which a sender's queue makes faster, and a connection that is still finding its speed slower.
    Raises RunnerError where there are no large ones."""
    small = [seconds for size, seconds in points if 4 * processes < size <= FRAME]  # with a part for each process
    large = [(size, seconds) for size, seconds in points if size >= LARGE] or list(points[-FEWEST:])
    if not small or len([size for size, _ in points if size > FRAME]) < FEWEST:
        raise RunnerError(f"{counted(len(points), 'size')} measured: too few to tell latency from bandwidth")
    start = min(median(small), min(seconds for _, seconds in large) / 2)
    slope = mean((seconds - start) / size for size, seconds in large)
    steps = 2 * (processes - 1)
    way = Way(start / steps, steps / processes / slope)
    worst, where = max((abs(start + slope * size - seconds) / seconds, size) for size, seconds in points)
    return Measured(processes, tuple(points), way, worst, where)


def link_yaml(measured: Measured, between: str) -> str:
    """The measured way as a link: the rate that has this goodput, the delay that has this latency."""
    rate = measured.mbit / GOODPUT
    delay = max(0.0, measured.way.alpha - HOP) / TRIPS * 1e3
    off = f"at most {measured.worst:.0%} off, at {measured.where:,} bytes"
    sizes = f"{measured.points[0][0]} to {measured.points[-1][0]:,} bytes"
    return (
        f"{HEADER} on {time.strftime('%Y-%m-%d')} {between}.\n"
        f"# All-reduces of {sizes}: {measured.way.alpha * 1e3:.3f} ms a message and {measured.mbit:.1f} Mbit/s, "
        f"{off}.\n"
        f"name: measured\n"
        f"rate: {rate:.1f}       # Mbit/s, of which {GOODPUT} arrive\n"
        f"delay: {delay:.4f}     # ms, one way, beside the {HOP * 1e3:g} ms of every message\n"
    )


def hindrance(path: Path) -> str | None:
    """Why nothing is to be written at that place: something else has the name. None if nothing hinders."""
    try:
        if path.exists() and not path.read_text(errors="replace").startswith(HEADER):
            return f"{path} is there, and not from a doctor"
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return None


def write_link(path: Path, text: str) -> None:
    """Write link.yaml. Raises RunnerError where that cannot be."""
    try:
        hindered = hindrance(path)
        if hindered is None:
            path.write_text(text)
    except OSError as error:
        hindered = f"{path} cannot be written: {error.strerror or error}"
    if hindered is not None:
        raise RunnerError(f"{hindered}. Name another file by out=FILE")
