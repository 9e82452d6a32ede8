"""How much of the gradient one collective carries, chosen so that sending overlaps with the backward.

A small bucket can leave early, and every bucket costs a latency. While the backward produces `gradient` bytes in T seconds, a link
that needs `latency` for a collective and sends at `rate` leaves, after the backward,

    first bucket ready + all collectives - T  =  T bucket / gradient  +  gradient / rate  +  latency gradient / bucket  -  T

to wait for where the link is the bottleneck (least at bucket = gradient sqrt(latency / T)), and else the last bucket's own time.
T differs between machines and moments. So it is not measured: the choice takes the longest T for which the link still is the
bottleneck, gradient / rate, which gives bucket = sqrt(gradient latency rate). docs/policies.md shows that this costs little.
From equal configurations follow equal buckets, and with them equal bits.
"""

from __future__ import annotations

from math import log2, sqrt

from runner.surroundings import Link

MIB = 2**20
DEFAULT = 25 * MIB  # torch's own, where no link is named, or none is used
SMALLEST = 64 * 2**10
TRIPS = 2  # times that a message waits for the link's delay: gloo announces it first (measured: 21.4 ms for two messages, 5 ms each way)
OVERHEAD = 3e-4  # seconds of a collective beside the link's own delay: gloo on one core each
GOODPUT = 0.956  # of a link's rate: headers of TCP, IP and Ethernet


def bucket_bytes(gradient: int | None, nodes: int, link: Link | None, asked: float | None) -> int | None:
    """The size of a bucket; `asked` is in MiB. None where it depends on a `gradient` that is not known yet."""
    if asked is not None:
        return max(1, round(asked * MIB))
    if link is None or link.rate is None or nodes == 1:
        return DEFAULT
    if gradient is None:
        return None
    best = sqrt(gradient * latency(nodes, link) * bytes_per_second(link))
    power = 1 << round(log2(max(best, 1)))  # close links share a size, and with it their bits
    return min(max(power, SMALLEST), DEFAULT)


def latency(nodes: int, link: Link) -> float:
    """Seconds that an all-reduce of nothing takes: a ring of the nodes is gone round twice."""
    return OVERHEAD + 2 * max(1, nodes - 1) * TRIPS * link.delay * 1e-3


def bytes_per_second(link: Link) -> float:
    """What a link carries for a process. Needs a rate."""
    assert link.rate is not None
    return link.rate * 1e6 / 8 * GOODPUT
