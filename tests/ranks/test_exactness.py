"""The promise: one experiment computes the same updates on any setup of equal micro-batches.

One task has all that could break it (dropout, three kinds of augmentation, token weights, a shuffled order, a short last window
whose last micro-batch is short, too), and one check looks at it: `parting`. Every fault that it is for is shown to it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.running import Bench, Run, parting

pytestmark = pytest.mark.ranks

POLICIES = ("accumulate", "no_sync", "every_batch", "backward_only")
SETUPS = [(1, 8), (2, 4), (4, 2), (8, 1)]
ITEMS = 85  # five windows of 16 and one of 5: micro-batches of 2, 2 and 1
LEARNING = ("optim=adamw", "optim.lr=0.003", "optim.clip=1.0", "schedule=cosine", "schedule.warmup=5", "batch.size=16")
FP64 = ("precision=fp64", "budget.updates=20")
TIGHT = 1e-10


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


@pytest.mark.parametrize(("processes", "accum"), SETUPS[1:])
def test_fp64_agrees_over_100_updates(bench: Bench, processes: int, accum: int) -> None:
    runs = [
        bench.run("Text", {"items": ITEMS}, *LEARNING, "precision=fp64", "budget.updates=100", cpus(p), f"accum={a}")
        for p, a in ((1, 8), (processes, accum))
    ]
    assert runs[0].plan.arithmetic.per_device == runs[1].plan.arithmetic.per_device == 2
    assert runs[0].plan.experiment == runs[1].plan.experiment
    assert parting(*runs, TIGHT) is None
    losses = runs[0].column("loss")
    assert len(losses) == 100
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10]), "the model learns, so the comparison is of something"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("processes", "accum"), SETUPS[1:])
def test_fp32_agrees_over_20_updates(bench: Bench, processes: int, accum: int, policy: str) -> None:
    """Losses within 1e-6. The norm of a gradient is a sum of many squares, so a little more is allowed for it."""
    settings = (*LEARNING, "budget.updates=20")
    alone = bench.run("Text", {"items": ITEMS}, *settings, "accum=8")
    run = bench.run("Text", {"items": ITEMS}, *settings, cpus(processes), f"accum={accum}", f"sync={policy}")
    for rows in ("updates", "batches"):
        assert run.column("loss", rows) == pytest.approx(alone.column("loss", rows), rel=1e-6)
    assert parting(alone, run, 1e-4) is None


@pytest.mark.parametrize(
    "fault",
    ["streams_by_rank", "streams_by_worker", "order_by_rank", "same_order", "lost_tail", "mean_of_means", "no_reduction",
     "schedule_by_process"],
)  # fmt: skip
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", TIGHT), ("fp32", 1e-4)])
def test_exactness_control(bench: Bench, fault: str, precision: str, tolerance: float) -> None:
    """Every fault that could part two setups does so in the eyes of the check."""
    settings = (*LEARNING, f"precision={precision}", "budget.updates=20")
    alone = bench.run("Text", {"items": ITEMS}, *settings, "accum=8")
    right = bench.run("Text", {"items": ITEMS}, *settings, "hardware=2cpu", "accum=4")
    assert parting(alone, right, tolerance) is None
    wrong = bench.run("Text", {"items": ITEMS, "fault": fault}, *settings, "hardware=2cpu", "accum=4")
    assert parting(alone, wrong, tolerance) is not None


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_workers_and_remainders(bench: Bench, workers: int, remainder: str) -> None:
    """Loader workers change nothing, whatever becomes of the remainder."""
    settings = (*LEARNING, *FP64, f"batch.remainder={remainder}")
    alone = bench.run("Text", {"items": ITEMS}, *settings, "accum=8", "data.workers=0")
    processes, accum = ((2, 4), (4, 2))[workers % 2] if workers < 3 else (1, 8)
    run = bench.run("Text", {"items": ITEMS}, *settings, cpus(processes), f"accum={accum}", f"data.workers={workers}")
    assert parting(alone, run, TIGHT) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_control(bench: Bench, workers: int) -> None:
    """The control: items that draw from the stream of their worker."""
    settings = (*LEARNING, *FP64, "batch.remainder=keep")
    alone = bench.run("Text", {"items": ITEMS}, *settings, "accum=8", "data.workers=0")
    arguments = {"items": ITEMS, "fault": "streams_by_worker"}
    wrong = bench.run("Text", arguments, *settings, "accum=8", f"data.workers={workers}")
    assert parting(alone, wrong, TIGHT) is not None


@pytest.mark.parametrize("items", [1, 3, 5, 13])
@pytest.mark.parametrize(("processes", "accum"), [(4, 2), (8, 1)])
def test_few_items(bench: Bench, processes: int, accum: int, items: int) -> None:
    """With fewer items than processes, some have none in every window."""
    settings = (*LEARNING, *FP64)
    alone = bench.run("Text", {"items": items}, *settings, "accum=8")
    run = bench.run("Text", {"items": items}, *settings, cpus(processes), f"accum={accum}")
    assert parting(alone, run, TIGHT) is None
    wrong = bench.run(
        "Text", {"items": items, "fault": "streams_by_rank"}, *settings, cpus(processes), f"accum={accum}"
    )
    assert (parting(alone, wrong, TIGHT) is not None) == (items > 2 * accum), "the fault shows where rank 1 has items"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2), (8, 1)])
def test_policies_give_one_update_and_what_they_send(bench: Bench, processes: int, accum: int, policy: str) -> None:
    """Collectives and bytes as the plan says, as the rows say, and as two counters outside the runner say."""
    settings = (*LEARNING, *FP64)
    alone = bench.run("Text", {"items": ITEMS}, *settings, "accum=8")
    run = bench.run(
        "Text", {"items": ITEMS, "watch": True}, *settings, cpus(processes), f"accum={accum}", f"sync={policy}"
    )
    assert parting(alone, run, TIGHT) is None
    each = policy in ("every_batch", "backward_only")
    right = [min(accum, 3 if items == 5 else accum) if each else 1 for items in run.column("items")]
    assert run.column("collectives") == right
    elements = sum(w.numel() for w in run.weights.values()) + 2  # and the window's total and weight
    assert run.column("bytes") == [8 * elements * n for n in right]
    assert (run.plan.comm.collectives, run.plan.comm.bytes) == (right[0], right[0] * 8 * elements)
    for rank in range(processes):
        rows = run.watched(rank)
        assert [r["all_reduces"] for r in rows] == right
        numbers = [r["sequence"] for r in rows]
        later = [b - a for a, b in pairwise(numbers[1:])]
        assert later == right[2:], "from the third update on, once DDP has rebuilt its buckets"
        assert [r["weights"] for r in rows] == [r["weights"] for r in run.watched(0)], "all ranks hold the same weights"


def test_policies_control(bench: Bench) -> None:
    """The control: without a reduction the ranks' weights part, and nothing is counted."""
    arguments = {"items": ITEMS, "watch": True, "fault": "no_reduction"}
    run = bench.run("Text", arguments, *LEARNING, *FP64, "hardware=2cpu", "accum=4")
    assert [r["weights"] for r in run.watched(0)] != [r["weights"] for r in run.watched(1)]
    assert sum(run.column("collectives")) == sum(r["all_reduces"] for r in run.watched(0)) == 0


# seeds


def rows_without_clocks(run: Run) -> list[dict[str, Any]]:
    clocks = ("seconds", "peak_memory")
    return [{k: v for k, v in row.items() if k not in clocks} for row in run.updates + run.batches + run.evals]


@pytest.mark.parametrize("seeding", ["exact", "fast"])
@pytest.mark.parametrize("processes", [1, 2])
def test_seeds(bench: Bench, processes: int, seeding: str) -> None:
    """0 is a seed like any other: a run repeats bit for bit under the same one, and differs under another."""
    arguments = {"items": ITEMS, "evaluated": 5}
    settings = (*LEARNING, "budget.updates=6", cpus(processes), "accum=4", f"seeding={seeding}")
    first = {seed: rows_without_clocks(bench.run("Text", arguments, *settings, f"seed={seed}")) for seed in (0, 1, 42)}
    again = rows_without_clocks(bench.run("Text", arguments, *settings, "seed=0", again=True))
    assert again == first[0]
    for name in ("loss", "digest"):
        seen = {tuple(row.get(name) for row in rows) for rows in first.values()}
        assert len(seen) == 3, f"three seeds, three columns of {name}"


# bf16


def test_bf16_is_close(bench: Bench) -> None:
    """Within 2% of fp32 in the first updates, with gradients in fp32; without its autocast it would be no nearer than equal."""
    settings = (*LEARNING, "budget.updates=20", "hardware=2cpu", "accum=4")
    full = bench.run("Text", {"items": ITEMS, "watch": True}, *settings)
    half = bench.run("Text", {"items": ITEMS, "watch": True}, *settings, "precision=bf16")
    assert half.column("loss") == pytest.approx(full.column("loss"), rel=0.02)
    assert half.column("loss") != full.column("loss")
    assert half.watched(1)[-1]["kinds"] == ["torch.float32"]
    without = bench.run("Text", {"items": ITEMS, "fault": "full_precision"}, *settings, "precision=bf16")
    assert without.column("loss") == full.column("loss")


def test_fp64_gradients(bench: Bench) -> None:
    run = bench.run("Text", {"items": ITEMS, "watch": True}, *LEARNING, *FP64, "hardware=2cpu", "accum=4")
    assert run.watched(1)[-1]["kinds"] == ["torch.float64"]
