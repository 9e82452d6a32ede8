"""Random streams: what is drawn depends on the seed and on what it is drawn for, not on who draws it.

The loss of a micro-batch is here the very number that was drawn, so that rows can be compared exactly.
"""

from __future__ import annotations

import pytest

from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

SETUPS = [(1, 4), (2, 2), (4, 1)]
SIZE = ("batch.size=8", "budget.epochs=3")
DRAWS = [("model", "torch"), ("model", "numpy"), ("model", "python"), ("model", "dropout")] + [
    ("item", kind) for kind in ("torch", "numpy", "python")
]


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def drawn(run: Run) -> list[float]:
    return run.column("loss", "batches")


@pytest.mark.parametrize(("where", "kind"), DRAWS)
@pytest.mark.parametrize(("processes", "accum"), SETUPS[1:])
def test_exact_draws_do_not_depend_on_the_rank(bench: Bench, where: str, kind: str, processes: int, accum: int) -> None:
    arguments = {"items": 22, "where": where, "kind": kind}
    alone = bench.run("Draws", arguments, *SIZE, "accum=4")
    run = bench.run("Draws", arguments, *SIZE, cpus(processes), f"accum={accum}")
    assert drawn(run) == drawn(alone)
    assert len(drawn(alone)) == 3 * 11
    distinct = len(set(drawn(alone)))
    assert distinct == 3 * 11 or (kind == "dropout" and distinct > 25), "no stream is used twice, in no epoch"


@pytest.mark.parametrize(("where", "kind"), DRAWS)
def test_exact_draws_control(bench: Bench, where: str, kind: str) -> None:
    """The control: streams of the rank in the model, of the worker in the dataset."""
    arguments = {"items": 22, "where": where, "kind": kind}
    fault = {"model": "streams_by_rank", "item": "streams_by_worker"}[where]
    alone = bench.run("Draws", arguments, *SIZE, "accum=4")
    wrong = bench.run("Draws", {**arguments, "fault": fault}, *SIZE, "hardware=2cpu", "accum=2")
    assert drawn(wrong) != drawn(alone)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_items_draw_alike_in_any_worker(bench: Bench, workers: int, kind: str) -> None:
    arguments = {"items": 22, "where": "item", "kind": kind}
    alone = bench.run("Draws", arguments, *SIZE, "accum=4")
    run = bench.run("Draws", arguments, *SIZE, "hardware=2cpu", "accum=2", f"data.workers={workers}")
    assert drawn(run) == drawn(alone)


@pytest.mark.parametrize(("where", "kind"), DRAWS)
def test_fast_draws_differ_between_processes(bench: Bench, where: str, kind: str) -> None:
    """`seeding=fast`: processes have streams of their own, which repeat with the seed; exact would give other draws."""
    arguments = {"items": 16, "where": where, "kind": kind}
    settings = (*SIZE, "hardware=2cpu", "accum=2")
    fast = bench.run("Draws", arguments, *settings, "seeding=fast")
    ranks = [[r["loss"] for r in fast.batches if r["rank"] == rank] for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1]) == 12
    assert all(a != b for a, b in zip(*ranks, strict=True)) or kind == "dropout"
    assert ranks[0] != ranks[1]
    assert drawn(bench.run("Draws", arguments, *settings, "seeding=fast", again=True)) == drawn(fast)
    assert drawn(bench.run("Draws", arguments, *settings, "seeding=fast", "seed=1")) != drawn(fast)
    assert drawn(bench.run("Draws", arguments, *settings)) != drawn(fast)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_fast_workers_draw_differently(bench: Bench, kind: str) -> None:
    """Forked loader workers must not all go on with the one stream that they were forked with."""
    arguments = {"items": 16, "where": "item", "kind": kind}
    run = bench.run("Draws", arguments, *SIZE, "hardware=2cpu", "accum=2", "seeding=fast", "data.workers=2")
    assert len(set(drawn(run))) == len(drawn(run)) == 24
