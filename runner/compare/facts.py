"""What is told of a run beside its verdict: the settings in which it differs, times, traffic, memory, results.

`as_json` is the whole comparison for machines.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from runner.choices import CompressName, SyncPolicy
from runner.compare.cause import experiment_differences, setup_differences
from runner.compare.outcome import outcomes
from runner.compare.pairs import Verdict
from runner.compare.read import Run, value_text
from runner.compare.session import Comparison, Family


@cache
def facts(run: Run) -> dict[str, Any]:
    """Numbers of a run; None where there are none. Times leave out the first updates: one warms up, and in some more memory
    may have been measured, if not in all."""
    rows, batches = run.updates, run.batches
    measured = int(np.isfinite(rows["peak_memory"]).sum())
    seconds = batches["seconds"][batches["update"] > max(1, measured if measured < run.count else 0)]
    if not len(seconds):
        seconds = batches["seconds"]
    last, peaks = float(rows["loss"][-1]), rows["peak_memory"]
    return {
        "updates": run.count,
        "state": run.state,
        "loss": last if math.isfinite(last) else None,
        **outcomes(run),
        "seconds_mean": float(seconds.mean()) if len(seconds) else None,
        "seconds_spread": float(seconds.std(ddof=1)) if len(seconds) > 1 else None,
        "batches": len(seconds),
        "collectives": _sent(run, "collectives"),
        "bytes": _sent(run, "bytes"),
        "peak_memory": int(np.nanmax(peaks)) if np.isfinite(peaks).any() else None,
    }


def _sent(run: Run, column: str) -> int:
    """In an update with a full window; on average where updates differ by design. The first one apart where it does."""
    config = run.plan.config
    local, narrow = config.sync.policy is SyncPolicy.local_sgd, config.compress.name is not CompressName.none
    values = run.updates[column][min(1, run.count - 1) if local or narrow else 0 :]
    return round(float(values.mean())) if local else int(values.max())


def settings(runs: list[Run]) -> list[str]:
    """The keys of experiment and setup in which the runs differ."""
    keys = dict.fromkeys(k for r in runs for k in (*r.experiment, *r.setup))
    found = []
    for key in keys:
        values = {value_text(r.experiment.get(key, r.setup.get(key))) for r in runs}
        if len(values) > 1 and key != "data":
            found.append(key)
    return found


def setting(run: Run, key: str) -> str:
    return value_text(run.experiment.get(key, run.setup.get(key)))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain values for `--json`."""
    return {
        "version": 1,
        "exit_code": comparison.exit_code,
        "runs": [
            {"name": r.name, "path": str(r.folder.path), "experiment": r.plan.experiment, "setup": r.plan.setup,
             "notes": r.notes, **facts(r)}
            for r in comparison.runs
        ],
        "pairs": [_pair(v) for v in comparison.verdicts],
        "not_comparable": [
            {"a": a[0].name, "b": b[0].name, "differences": experiment_differences(a[0], b[0])}
            for a, b in group_pairs(comparison)
        ],
        "seeds": [_family(f) for f in comparison.families],
        "left_out": [{"path": str(x.path), "reason": x.reason} for x in comparison.left_out],
        "twins": [t.name for t in comparison.twins],
    }  # fmt: skip


def group_pairs(comparison: Comparison) -> list[tuple[list[Run], list[Run]]]:
    """Groups that cannot be compared: each with the first one."""
    return [(comparison.groups[0], other) for other in comparison.groups[1:]]


def _pair(v: Verdict) -> dict[str, Any]:
    return {
        "a": v.a.name, "b": v.b.name, "verdict": v.kind.value, "reason": v.reason, "first_difference": v.first,
        "cause": v.cause, "judged_through": v.through, "tolerance_at_start": v.sensitivity, "notes": v.notes,
        "setup": setup_differences(v.a, v.b),
    }  # fmt: skip


def _family(f: Family) -> dict[str, Any]:
    return {
        "left": [r.name for r in f.left], "right": [r.name for r in f.right], "verdict": f.verdict,
        "tests": [
            {"name": t.name, "means": t.means, "low": t.low, "high": t.high, "margin": t.margin, "spread": t.spread,
             "paired": t.paired, "equivalent": t.equivalent, "text": str(t)}
            for t in f.tests
        ],
    }  # fmt: skip
