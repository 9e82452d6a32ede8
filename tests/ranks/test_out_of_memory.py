"""A window that runs out of memory is repeated in smaller micro-batches, on all processes, as if nothing had been.

The run that it is held against begins with the small micro-batches. Batch normalization's running statistics, which a broken
window must not move, are in `model.pt`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

SETTINGS = ("batch=auto_memory", "batch.size=16", "batch.remainder=keep", "optim.lr=0.01", "budget.epochs=1")
LONG = "budget.epochs=2"
TASK = "tests.probe_oom.Tight"


def tight(bench: Bench, processes: int, per_device: int, *settings: str, **arguments: Any) -> Run:
    where = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    return bench.run(TASK, {"room": 100, **arguments}, where, f"batch.per_device={per_device}", *SETTINGS, *settings)


def unequal(one: Run, other: Run) -> str | None:
    if len(one.batches) != len(other.batches):
        return f"{len(one.batches)} and {len(other.batches)} micro-batches"
    for a, b in zip(one.updates, other.updates, strict=True):
        for key in ("update", "epoch", "weight", "items", "digest", "lr", "skipped", "collectives", "bytes"):
            if a[key] != b[key]:
                return f"{key} of {a} and {b}"
        if abs(a["loss"] - b["loss"]) > 1e-5 * abs(a["loss"]):
            return f"loss of {a} and {b}"
    for a, b in zip(one.batches, other.batches, strict=True):
        if (a["update"], a["micro"], a["rank"], a["weight"]) != (b["update"], b["micro"], b["rank"], b["weight"]):
            return f"{a} and {b}"
    for name, weight in one.weights.items():
        if not torch.allclose(weight, other.weights[name], rtol=1e-4, atol=1e-6):
            return f"{name} of model.pt"
    return None


CASES: list[tuple[int, dict[str, Any], tuple[str, ...]]] = [
    (1, {"where": "forward", "kind": "cpu"}, ()),
    (1, {"where": "backward", "kind": "python"}, ("precision=bf16", "precision.weights=bf16")),
    (2, {"where": "forward", "rank": 1}, ()),
    (2, {"where": "backward", "rank": 1, "layer": 2}, ()),
    (2, {"where": "backward", "rank": 0, "layer": 0}, ("sync=no_sync", "data.workers=1")),
    (2, {"where": "backward", "rank": 1}, ("precision=bf16", "precision.weights=bf16")),
]


@pytest.mark.parametrize(("processes", "trouble", "settings"), CASES)
def test_repeated_from_the_start(
    bench: Bench, processes: int, trouble: dict[str, Any], settings: tuple[str, ...]
) -> None:
    """From the first window on there is room for four items, then for two: both halvings are in the notes, and no row
    is there twice."""
    alone = tight(bench, processes, 2, *settings, norm=False)
    run = tight(bench, processes, 8, *settings, norm=False, room=2, **trouble)
    assert unequal(alone, run) is None
    notes = [n for n in run.plan.notes if "out of memory" in n]
    assert len(notes) == 2
    assert run.plan.halved == ((1, 4), (1, 2))
    assert run.folder.read_status()["state"] == "finished"
    assert "out of memory at update 1" in run.folder.read_status()["note"]


def test_a_real_limit(bench: Bench) -> None:
    """The system gives no more: half of the micro-batch fits."""
    run = tight(bench, 1, 8, "log.memory=false", where="limit")
    assert run.plan.halved == ((1, 4),)


def test_in_the_middle_of_a_run(bench: Bench) -> None:
    """Before it, the large micro-batches; after it, the small ones; batch normalization as if the window had been cut so
    from the beginning."""
    large, small = tight(bench, 2, 4, LONG), tight(bench, 2, 2, LONG)
    run = tight(bench, 2, 4, LONG, room=2, first=7, rank=1, where="backward")  # two passes a window: in the fourth
    assert "out of memory at update 4" in next(n for n in run.plan.notes if "repeated" in n)
    sizes = [[r["weight"] for r in run.batches if r["update"] == u] for u in range(1, 7)]
    assert sizes == [[4.0] * 4] * 3 + [[2.0] * 8] * 3
    assert run.column("loss")[:3] == large.column("loss")[:3]
    assert run.column("digest") == small.column("digest")
    assert run.plan.halved == ((4, 2),)
    tracked = "0.num_batches_tracked"
    assert run.weights[tracked] == 3 * 2 + 3 * 4, "a broken window moved the statistics"


def test_statistics_control(bench: Bench) -> None:
    run = tight(bench, 2, 4, LONG, room=2, first=7, rank=1, where="backward", fault="statistics_stay")
    assert run.weights["0.num_batches_tracked"] != 3 * 2 + 3 * 4


@pytest.mark.parametrize("fault", ["rows_stay", "gradients_stay"])
def test_repeating_control(bench: Bench, fault: str) -> None:
    """One pass is done when the second breaks."""
    trouble = {"room": 2, "first": 2, "where": "forward"}
    alone, right = tight(bench, 1, 2, norm=False), tight(bench, 1, 8, norm=False, **trouble)
    assert unequal(alone, right) is None
    assert unequal(alone, tight(bench, 1, 8, norm=False, fault=fault, **trouble)) is not None


def test_other_errors_end_the_run(bench: Bench) -> None:
    where = ("hardware=2cpu", "batch.per_device=8", *SETTINGS)
    failed = bench.fail(TASK, {"room": 2, "rank": 1, "kind": "other"}, *where)
    assert "mat1 and mat2" in failed.folder.read_status()["reason"]
    hopeless = bench.fail(TASK, {"room": 0, "rank": 1, "norm": False}, *where)
    assert "with a single item on each device" in hopeless.folder.read_status()["reason"]
    fixed = bench.fail(TASK, {"room": 2, "rank": 1}, "hardware=2cpu", "batch=auto", "batch.per_device=8", *SETTINGS[1:])
    assert "out of memory" in fixed.folder.read_status()["reason"]
