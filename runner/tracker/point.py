"""What a tracker is given: points, made of rows, with the counters that can serve as axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.plan import Plan
from runner.rundir import RunFolder

AXES = {"batch": "batch", "update": "update", "eval": "update"}  # the counter that each kind of point is drawn over
EXIT_CODES = {"finished": 0, "interrupted": 130}  # of a run that ended so; any other state: 1
_OWN = {"batch": ("update",), "update": ("update", "digest"), "eval": ("update",)}  # counters, and what is no number


@dataclass(frozen=True, slots=True)
class Point:
    """A row as a tracker sees it. `batch` counts micro-batches over all processes from 1, `update` updates; `values` are
    numbers under names such as `batch/loss`."""

    kind: str
    batch: int
    update: int
    values: dict[str, float]

    @property
    def step(self) -> int:
        """The counter that this kind of point is drawn over."""
        return self.batch if AXES[self.kind] == "batch" else self.update


class Tracker(Protocol):
    """One run in one tracker."""

    def plan(self, plan: Plan) -> None:
        """The plan is complete: the data and the model are loaded."""

    def log(self, points: Sequence[Point]) -> None:
        """Take points, in the order of their writing."""

    def close(self, state: str) -> None:
        """The run has ended, as `finished`, `failed` or `interrupted`. Everything must be on disk afterwards."""


def point_of(kind: str, row: dict[str, Any], per_window: int) -> Point:
    """The point of a row of batches.jsonl, updates.jsonl or evals.jsonl. What is null there is absent here."""
    update = row["update"]
    batch = (update - 1) * per_window + row["micro"] + 1 if kind == "batch" else update * per_window
    values = {
        f"{kind}/{name}": value + 0 if isinstance(value, bool) else value
        for name, value in row.items()
        if name not in _OWN[kind] and isinstance(value, bool | int | float)
    }
    return Point(kind, batch, update, values)


def config_of(plan: Plan) -> dict[str, Any]:
    """The resolved configuration in plain types, with what the plan made of it under `plan`."""
    values = plan.config.model_dump(mode="json", by_alias=True)
    made = plan.model_dump(mode="json", include={"experiment", "setup", "arithmetic", "comm", "notes", "data"})
    return {**values, "plan": made, "world_size": plan.arithmetic.processes}


def name_of(folder: RunFolder) -> str:
    """A run's name for people: its folder, for a job of a sweep with the sweep's before it."""
    path = folder.path.absolute()
    return f"{path.parent.name}/{path.name}" if path.name.isdigit() else path.name
