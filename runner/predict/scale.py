"""One experiment on 8 to 4096 devices, on paper: what each all-reduce would take, and what is left of the speed.

Every device keeps its micro-batches, so that the observed batch grows with the devices. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.plan import Plan, Sizes
from runner.predict.allreduce import ALGORITHMS, Shape, best
from runner.predict.link import algorithm_of, bucket_bytes, gradient_bytes, reduction_of, reductions_of
from runner.predict.pace import Pace

COUNTS = tuple(8 << n for n in range(10))  # 8 to 4096
ON_A_NODE = 8  # devices, where the plan has one node


@dataclass(frozen=True, slots=True)
class Row:
    """So many devices: seconds of an all-reduce of the gradient by each algorithm, the fastest of them for one bucket, the
    `algorithm` that would run, and with that the seconds of an update and the part of them that is spent computing (None without
    a measured pace)."""

    devices: int
    nodes: int
    seconds: dict[str, float]
    fastest: str
    algorithm: str
    update: float | None
    efficiency: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def scale(plan: Plan, sizes: Sizes, shape: Shape, pace: Pace | None) -> Iterator[Row]:
    """A row for each number of devices; `shape` says what joins them, and how many are on a node if it has several."""
    local = shape.local if shape.nodes > 1 else ON_A_NODE
    size = gradient_bytes(plan, sizes)
    bucket = min(bucket_bytes(plan), size)
    for count in COUNTS:
        here = replace(shape, processes=count, nodes=max(1, count // local))
        name = algorithm_of(plan, here, sizes)
        yield Row(
            devices=count,
            nodes=here.nodes,
            seconds={name: time(here, size) for name, time in ALGORITHMS.items()},
            fastest=best(here, bucket),
            algorithm=name,
            **_update(plan, here, name, sizes, pace),
        )


def _update(plan: Plan, shape: Shape, name: str, sizes: Sizes, pace: Pace | None) -> dict[str, float | None]:
    if pace is None:
        return {"update": None, "efficiency": None}
    pace = pace.scaled_to(plan.arithmetic.per_device)
    reductions, hidden = reductions_of(plan)
    waiting = reduction_of(plan, shape, sizes, name, pace.micro * pace.backward * hidden)
    alone = plan.arithmetic.accum * pace.micro + pace.tail
    update = alone + reductions * waiting
    return {"update": update, "efficiency": alone / update}
