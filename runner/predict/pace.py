"""How fast a model computes here, read from a run: seconds of micro-batches that sent nothing, and of what ends an update.

A window waits for its slowest process, so that of each window is what counts: where other work disturbs now one process and
now another, the time of a typical micro-batch promises more than any window keeps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from runner import records
from runner.errors import ConfigError, Problem, RecordError
from runner.plan import Plan
from runner.rundir import RunFolder

WARM_UP = 1  # updates at the start that are left out: memory is taken there for the first time
BACKWARD = 2 / 3  # of a forward and backward: the backward makes two products where the forward makes one


@dataclass(frozen=True, slots=True)
class Pace:
    """`micro`: seconds of a forward and backward of `per_device` items on a window's slowest process; `tail`: of what comes after
    a window's last, until its update is made. `source` says where they were measured."""

    micro: float
    tail: float
    per_device: int
    source: str
    backward: float = BACKWARD

    def scaled_to(self, per_device: int) -> Pace:
        """For other micro-batches, if time grows as their items do."""
        micro = self.micro * per_device / self.per_device
        return Pace(micro, self.tail, per_device, self.source, self.backward)


def pace_of(path: Path) -> Pace:
    """The pace of a run. Raises ConfigError where it cannot be told from its rows."""
    folder = RunFolder(path)
    try:
        plan = folder.read_plan()
        batches, updates = list(records.read(folder.batches)), list(records.read(folder.updates))
    except (OSError, ValueError, RecordError) as error:
        raise ConfigError([Problem("--from", f"{path} is no run that can be read ({_short(error)})")]) from error
    first = min((r["update"] for r in updates), default=0)
    seconds = {r["update"]: r["seconds"] for r in updates if r["update"] >= first + WARM_UP}
    unsynced: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    ranks: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in batches:
        if row["update"] not in seconds:
            continue
        ranks[row["update"]][row["rank"]] += row["seconds"]
        if row["weight"] and not row["synced"]:
            unsynced[row["update"]][row["rank"]].append(row["seconds"])
    if not unsynced:
        raise ConfigError([_nothing_unsynced(path, plan, len(seconds))])
    micro = median(max(mean(each) for each in window.values()) for window in unsynced.values())
    tail = median(max(0.0, seconds[update] - max(window.values())) for update, window in ranks.items())
    return Pace(micro, tail, plan.arithmetic.per_device, str(path))


def _nothing_unsynced(path: Path, plan: Plan, updates: int) -> Problem:
    if not updates:
        return Problem("--from", f"{path} has no updates after its first", "Run at least 3: budget.updates=3")
    what = f"every micro-batch of {path} was reduced ({plan.config.sync.policy.value}, accum {plan.arithmetic.accum}), so none shows computing alone"
    return Problem("--from", what, "Give a run with hardware=cpu, or with sync=accumulate accum=2 or more")


def _short(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0]
