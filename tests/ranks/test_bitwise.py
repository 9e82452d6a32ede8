"""`seeding=bitwise`: every loss and every byte of the model are the same, however the processes and accum split a window.

The same task as for `seeding=exact`: a transformer with dropout, augmentation, token weights, a shuffled order, a short last window.
One check looks at everything that a run leaves, and every variant that is no fixed tree is shown to it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.running import Bench, Run

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

ITEMS = 85  # at 16 a window: five, and one of 5 items in micro-batches of 2, 2 and 1
LEARNING = ("optim=adamw", "optim.lr=0.003", "optim.clip=1.0", "schedule=cosine", "schedule.warmup=5", "batch.size=16")
SHORT = (*LEARNING, "budget.updates=20")
TEXT = {"items": ITEMS, "evaluated": 7}
UNLIKE = ("seconds", "peak_memory", "rank", "synced", "collectives", "bytes")  # what a split may change


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def split(bench: Bench, processes: int, accum: int, *settings: str, seeding: str = "bitwise", **more: Any) -> Run:
    return bench.run("Text", {**TEXT, **more}, *settings, cpus(processes), f"accum={accum}", f"seeding={seeding}")


def unequal(one: Run, other: Run) -> list[str]:
    """Of all that two runs leave, what is not the same to the last bit."""
    found = []
    for rows in ("batches", "updates", "evals"):
        for key in {key for row in getattr(one, rows) for key in row}:
            if key not in UNLIKE and one.column(key, rows) != other.column(key, rows):
                found.append(f"{key} of {rows}")
    if one.folder.model.read_bytes() != other.folder.model.read_bytes():
        found.append("model.pt")
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2), (8, 1)])
def test_200_updates_to_the_last_bit(bench: Bench, processes: int, accum: int, precision: str) -> None:
    settings = (*LEARNING, "budget.updates=200", f"precision={precision}")
    alone, run = split(bench, 1, 8, *settings), split(bench, processes, accum, *settings)
    assert len(run.updates) == 200
    assert unequal(alone, run) == []
    losses = run.column("loss")
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20]), "the model learns, so the comparison is of something"


@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2), (8, 1)])
def test_control_exact(bench: Bench, processes: int, accum: int) -> None:
    """The control: `seeding=exact` over the same splits differs in the last bits, and in the last bits only."""
    alone, run = (split(bench, p, a, *SHORT, seeding="exact") for p, a in ((1, 8), (processes, accum)))
    assert {"loss of updates", "grad_norm of updates", "model.pt"} <= set(unequal(alone, run))
    assert run.column("loss") == pytest.approx(alone.column("loss"), rel=1e-6)


@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2), (8, 1)])
def test_control_order(bench: Bench, processes: int, accum: int) -> None:
    """The control: micro-batches added one after another inside a process."""
    wrong = split(bench, processes, accum, *SHORT, fault="tree_in_order")
    alone = split(bench, 1, 8, *SHORT, fault="tree_in_order")
    assert "model.pt" in unequal(alone, wrong)


@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2), (8, 1)])
def test_many_buckets(bench: Bench, processes: int, accum: int) -> None:
    """Where buckets begin and end, and when they are sent, changes no bit."""
    run = split(bench, processes, accum, *SHORT, fault="small_buckets")
    assert unequal(split(bench, 1, 8, *SHORT), run) == []
    elements = sum(w.numel() for w in run.weights.values()) + 2
    assert set(run.column("collectives")) == {-(-elements // 64)}


@pytest.mark.parametrize(("processes", "accum"), [(2, 6), (4, 3)])
def test_accum_with_an_odd_factor(bench: Bench, processes: int, accum: int) -> None:
    """12 micro-batches are four groups of three; 36 items leave every short window somewhere else in them."""
    settings = (*SHORT, "batch.size=24")
    alone = split(bench, 1, 12, *settings)
    assert unequal(alone, split(bench, processes, accum, *settings)) == []
    wrong = split(bench, processes, accum, *settings, fault="tree_in_order")
    assert "model.pt" in unequal(split(bench, 1, 12, *settings, fault="tree_in_order"), wrong)


@pytest.mark.parametrize("items", [1, 3, 5, 13])
def test_few_items(bench: Bench, items: int) -> None:
    """Processes without items send what changes no sum."""
    runs = [split(bench, p, a, *SHORT, items=items) for p, a in ((1, 8), (4, 2), (8, 1))]
    assert unequal(runs[0], runs[1]) == unequal(runs[0], runs[2]) == []


@pytest.mark.parametrize("processes", [2, 4])
def test_what_is_sent(bench: Bench, processes: int) -> None:
    """One exchange with a neighbour for every level of the processes' tree, as the plan says."""
    run = split(bench, processes, 8 // processes, *SHORT)
    elements = sum(w.numel() for w in run.weights.values()) + 2
    assert run.column("bytes") == [4 * elements * (processes // 2)] * 20
    assert (run.plan.comm.collectives, run.plan.comm.bytes) == (1, 4 * elements * (processes // 2))
    assert run.column("collectives") == [1] * 20


def test_unused_parameters(bench: Bench) -> None:
    """A branch that only some micro-batches use, and one that none does."""
    uses = ["a", "", "ab", "a", "", "b", "a", "a"] * 3
    settings = ("batch.size=8", "optim.momentum=0.9", "optim.lr=0.1", "data.shuffle=false", "seeding=bitwise")
    runs = [bench.run("Branches", {"uses": uses}, *settings, cpus(p), f"accum={8 // p}") for p in (1, 2, 4, 8)]
    assert all(unequal(runs[0], run) == [] for run in runs[1:])
    assert runs[0].weights["b"] < 1.0


def test_batch_statistics_are_refused(bench: Bench) -> None:
    run = bench.fail("Normalized", {}, "batch.size=4", "seeding=bitwise")
    assert "seeding=bitwise cannot hold" in (reason := run.folder.read_status()["reason"])
    assert "BatchNorm1d" in reason
    assert "seeding=exact" in reason
    bench.run("Normalized", {}, "batch.size=4")


def test_an_operation_without_a_deterministic_form_is_refused(bench: Bench) -> None:
    run = bench.fail("Unordered", {}, "batch.size=4", "seeding=bitwise")
    reason = run.folder.read_status()["reason"]
    assert "seeding=bitwise" in reason
    assert "seeding=exact" in reason
    bench.run("Unordered", {}, "batch.size=4")


def test_a_gradient_in_parts_is_refused(bench: Bench) -> None:
    """Sent before its second part arrives it would be wrong: told, not sent."""
    settings = ("batch.size=4", "seeding=bitwise", "hardware=2cpu", "hardware.timeout=5")
    run = bench.fail("Reentrant", {"fault": "small_buckets"}, *settings)
    assert "use_reentrant=False" in run.folder.read_status()["reason"]
