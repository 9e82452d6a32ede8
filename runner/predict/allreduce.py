"""How long an all-reduce takes on paper: latency and bandwidth of a path, and the algorithms' numbers of steps and bytes.

The formulae, with their sources, are in docs/scaling.md. Pure arithmetic: no torch, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2, sqrt

from runner.buckets import GOODPUT, OVERHEAD, TRIPS
from runner.surroundings import Link

HOP = OVERHEAD / 2  # seconds that a message takes beside the link's delay: two of them are an all-reduce between two
SEGMENT = 1448  # bytes of a TCP segment over Ethernet
RENO = 1.22  # segments under way times sqrt(loss), of a TCP that halves its window at each loss


@dataclass(frozen=True, slots=True)
class Path:
    """Between two devices or nodes: `alpha` seconds of a message of nothing, `rate` bytes per second each way."""

    alpha: float
    rate: float

    def sent(self, size: float) -> float:
        """Seconds of one message."""
        return self.alpha + size / self.rate


@dataclass(frozen=True, slots=True)
class Shape:
    """Processes on nodes: `inside` joins those of one node, `between` the nodes, each of which has one way out that its
    processes share."""

    processes: int
    nodes: int
    inside: Path
    between: Path

    @property
    def local(self) -> int:
        return self.processes // self.nodes

    @property
    def slowest(self) -> Path:
        """The path that a ring in the order of ranks is held up by: it passes from node to node only once."""
        if self.nodes == 1:
            return self.inside
        if self.local == 1:
            return self.between
        return Path(max(self.inside.alpha, self.between.alpha), min(self.inside.rate, self.between.rate))


def path_of(link: Link) -> Path:
    """What a link of the configuration is to a process. Needs a rate."""
    assert link.rate is not None
    alpha = HOP + TRIPS * (link.delay + link.jitter / 2) * 1e-3
    rate = link.rate * 1e6 / 8 * GOODPUT
    if link.loss:  # what one TCP connection keeps up under random loss
        rate = min(rate, SEGMENT / max(2e-3 * link.delay, HOP) * RENO / sqrt(link.loss / 100))
    return Path(alpha, rate)


def ring(n: int, path: Path, size: float) -> float:
    """Reduce-scatter and all-gather along a ring: 2 (n - 1) steps of size / n bytes."""
    return 2 * (n - 1) * path.sent(size / n)


def ring_of_halves(n: int, path: Path, size: float) -> float:
    """The ring as gloo makes it: each part goes as two messages, of which one is on its way while the other waits for the
    link's delay. So that wait is seen only where it takes longer than sending a half; what the processor does always is."""
    part, own = size / n / path.rate, min(HOP, path.alpha)
    return 2 * (n - 1) * (own + max(part, path.alpha - own + part / 2))


def doubling(n: int, path: Path, size: float) -> float:
    """Recursive doubling: everything is exchanged with a partner log2 n times. n a power of two."""
    return ceil(log2(n)) * path.sent(size) if n > 1 else 0.0


def halving(n: int, path: Path, size: float) -> float:
    """Rabenseifner's: reduce-scatter by recursive halving, all-gather by recursive doubling. What is above a power of
    two gives its part to a partner first and takes the result from it in the end."""
    if n == 1:
        return 0.0
    power = 1 << (n.bit_length() - 1)
    extra = 2 * path.sent(size) if n > power else 0.0
    return 2 * log2(power) * path.alpha + 2 * (power - 1) / power * size / path.rate + extra


def double_tree(n: int, path: Path, size: float) -> float:
    """Two binary trees, each with half of the bytes, in k chunks: reduced to the roots and sent back in (4 log2 n + 2 k) steps
    of size / k bytes, at the best k. A process is a leaf of one tree and passes on in the other, so that all links are used."""
    if n == 1:
        return 0.0
    depth = ceil(log2(n))
    chunks = max(1.0, sqrt(2 * depth * size / (path.alpha * path.rate))) if path.alpha else float("inf")
    if chunks == float("inf"):
        return 2 * size / path.rate
    return (4 * depth + 2 * chunks) * path.sent(size / chunks)


def flat_ring(shape: Shape, size: float) -> float:
    """One ring over all processes, node by node, as gloo makes it."""
    return ring_of_halves(shape.processes, shape.slowest, size)


def node_aware(between: Callable[[int, Path, float], float]) -> Callable[[Shape, float], float]:
    """Reduce-scatter inside each node, an all-reduce of every process's part between the nodes, all-gather inside. The parts of
    a node's processes leave it at once and share its way out, so that together they are one all-reduce of the whole."""

    def time(shape: Shape, size: float) -> float:
        inside = ring(shape.local, shape.inside, size) if shape.local > 1 else 0.0
        return inside + (between(shape.nodes, shape.between, size) if shape.nodes > 1 else 0.0)

    return time


ALGORITHMS: dict[str, Callable[[Shape, float], float]] = {
    "ring": flat_ring,
    "rings inside and between nodes": node_aware(ring),
    "double tree between nodes": node_aware(double_tree),
    "halving and doubling between nodes": node_aware(halving),
}


def best(shape: Shape, size: float) -> str:
    """The fastest of the algorithms for so many bytes."""
    return min(ALGORITHMS, key=lambda name: ALGORITHMS[name](shape, size))


def on_the_wire(n: int, size: int) -> float:
    """The bytes that each process of a ring sends for an all-reduce of `size` bytes."""
    return 2 * (n - 1) / n * size
