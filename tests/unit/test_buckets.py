"""The size of a bucket: near the best there is for any backward, the same for the same configuration."""

from __future__ import annotations

from math import log2

import pytest

from runner.buckets import DEFAULT, SMALLEST, bucket_bytes, bytes_per_second, latency
from runner.surroundings import Link

SLOW = Link(name="350mbit", rate=350.0)
LINKS = [SLOW, Link(name="1gbit", rate=1000.0), Link(name="wan", rate=100.0, delay=20.0)]
GRADIENTS = [2_000_000, 21_000_000, 400_000_000]


def waited(bucket: float, gradient: int, backward: float, link: Link) -> float:
    """Seconds of waiting after a backward of so many seconds, simulated bucket by bucket."""
    produced, free = 0.0, 0.0
    while produced < gradient:
        size = min(bucket, gradient - produced)
        produced += size
        free = max(free, backward * produced / gradient) + latency(2, link) + size / bytes_per_second(link)
    return free - backward


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("pace", [0.05, 0.3, 1.0, 3.0])
def test_near_the_best(link: Link, gradient: int, pace: float) -> None:
    """For backwards of a twentieth to three times what sending takes: backward and waiting together are within 10% of those
    with the best bucket of all; within 30% where a small gradient is sent far away: whether two buckets cost a latency too many or save half
    a backward depends on the backward alone, and one size cannot be right for all."""
    backward = pace * gradient / bytes_per_second(link)
    chosen = bucket_bytes(gradient, 2, link, None)
    assert chosen is not None
    best = min(waited(SMALLEST * 2**i, gradient, backward, link) for i in range(13))
    assert waited(chosen, gradient, backward, link) + backward <= (1.3 if link.delay else 1.1) * (best + backward)


def test_near_the_best_control() -> None:
    """The control: torch's 25 MiB, and buckets that are much too small, are not within 10% on the slow link."""
    gradient = 21_000_000
    backward = gradient / bytes_per_second(SLOW)
    best = min(waited(SMALLEST * 2**i, gradient, backward, SLOW) for i in range(13))
    for bucket in (DEFAULT, 4096):
        assert waited(bucket, gradient, backward, SLOW) + backward > 1.1 * (best + backward)


def test_quantised() -> None:
    """A power of two, which nearby rates share; a given size is taken as it is; without a link torch's own stays."""
    sizes = {bucket_bytes(21_000_000, 2, Link(name="custom", rate=rate), None) for rate in (340.0, 350.0, 360.0)}
    (size,) = sizes
    assert size is not None
    assert log2(size) == round(log2(size))
    assert bucket_bytes(21_000_000, 2, SLOW, 1.5) == 1.5 * 2**20
    assert bucket_bytes(21_000_000, 1, SLOW, None) == DEFAULT
    assert bucket_bytes(21_000_000, 2, Link(name="none"), None) == DEFAULT
    assert bucket_bytes(None, 2, SLOW, None) is None
