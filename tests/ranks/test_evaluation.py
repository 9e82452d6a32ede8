"""Evaluation: the same numbers on any number of processes, and no trace of it in training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

LEARNING = ("optim=adamw", "optim.lr=0.003", "precision=fp64", "budget.updates=12")
SETTINGS = (*LEARNING, "batch=auto", "batch.size=12", "batch.per_device=1")


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def training_rows(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "peak_memory")} for r in run.updates + run.batches]


@pytest.mark.parametrize("items", [3, 11])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_exact_over_processes(bench: Bench, processes: int, workers: int, items: int) -> None:
    """Augmented items, token weights, unequal shares: the same sums, after different updates alike."""
    arguments = {"items": 25, "evaluated": items}
    alone = bench.run("Text", arguments, *SETTINGS, "eval.every=4")
    run = bench.run("Text", arguments, *SETTINGS, "eval.every=4", cpus(processes), f"data.workers={workers}")
    assert run.column("update", "evals") == [4, 8, 12]
    assert run.column("weight", "evals") == alone.column("weight", "evals")
    assert run.column("loss", "evals") == pytest.approx(alone.column("loss", "evals"), rel=1e-10)


@pytest.mark.parametrize("processes", [2, 3])
def test_exact_over_processes_control(bench: Bench, processes: int) -> None:
    arguments = {"items": 25, "evaluated": 11, "fault": "eval_mean_of_ranks"}
    alone = bench.run("Text", {"items": 25, "evaluated": 11}, *SETTINGS, "eval.every=4")
    wrong = bench.run("Text", arguments, *SETTINGS, "eval.every=4", cpus(processes))
    assert wrong.column("loss", "evals") != pytest.approx(alone.column("loss", "evals"), rel=1e-10)


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seeding", ["exact", "fast"])
@pytest.mark.parametrize("processes", [1, 2])
def test_training_does_not_notice(bench: Bench, processes: int, seeding: str, workers: int, still: bool) -> None:
    """The same rows with an evaluation after every update and without any: streams, and the mode of every part of the
    model, are left as they were, also where a part is kept in evaluation mode."""
    settings = (*SETTINGS, cpus(processes), f"seeding={seeding}", f"data.workers={workers}")
    without = bench.run("Text", {"items": 25, "still": still}, *settings)
    every = bench.run("Text", {"items": 25, "evaluated": 5, "still": still}, *settings, "eval.every=1")
    assert len(every.evals) == 12
    assert training_rows(every) == training_rows(without)


@pytest.mark.parametrize(
    ("seeding", "fault"), [("fast", "eval_disturbs"), ("fast", "eval_mode_stays"), ("exact", "eval_mode_stays")]
)
def test_training_notices_control(bench: Bench, seeding: str, fault: str) -> None:
    settings = (*SETTINGS, "hardware=2cpu", f"seeding={seeding}")
    without = bench.run("Text", {"items": 25, "still": False}, *settings)
    every = bench.run("Text", {"items": 25, "evaluated": 5, "fault": fault}, *settings, "eval.every=1")
    assert training_rows(every) != training_rows(without)


@pytest.mark.parametrize(("every", "updates"), [("null", [6]), ("2", [2, 4, 6]), ("4", [4, 6]), ('"1epoch"', [3, 6])])
def test_when(bench: Bench, every: str, updates: list[int]) -> None:
    settings = ("batch.size=4", "budget.epochs=2", f"eval.every={every}")
    run = bench.run("Ids", {"items": 10, "evaluated": 3}, *settings)
    assert run.column("update", "evals") == updates


def test_no_evaluation_data(bench: Bench) -> None:
    run = bench.run("Ids", {"items": 10}, "batch.size=4", "eval.every=1")
    assert run.evals == []
