"""The recipes that are shipped, each run at a small size: what it promises is what it shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import WHY
from tests.commands import DEADLINE, PROJECT, Done, rows, runner, started, status

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SMALL = ["task.width=32", "task.layers=1", "task.heads=2", "task.vocabulary=256"]


def run(tmp_path: Path, recipe: str, *arguments: str) -> Done:
    start = tmp_path / "start"
    start.mkdir()
    with started(start, f"recipe={recipe}", *arguments) as command:
        done = command.wait(3 * DEADLINE).expect(0)  # a recipe is several runs
    assert all(status(r)["state"] == "finished" for r in done.runs())
    return done


def plans(done: Done) -> list[dict[str, Any]]:
    return [json.loads((r / "plan.json").read_text()) for r in done.runs()]


def column(done: Done, name: str) -> list[list[Any]]:
    return [[row[name] for row in rows(r / "updates.jsonl")] for r in done.runs()]


def test_gradient_sync_measures_29_batches_for_each_process_under_each_policy(tmp_path: Path) -> None:
    link = ["link.simulate=true"] if WHY else []
    done = run(tmp_path, "gradient_sync", *SMALL, *link, "repeat=1")
    configs = [p["config"] for p in plans(done)]
    policies = ["every_batch", "backward_only", "no_sync", "accumulate"]
    assert [(c["hardware"]["nodes"], c["sync"]["policy"]) for c in configs] == [
        (n, p) for n in (1, 2) for p in policies
    ]
    assert {c["link"]["rate"] for c in configs} == {350}
    for folder in done.runs():
        assert len([r for r in rows(folder / "batches.jsonl") if r["update"] > 1]) == 2 * 29
    several, once = [4] * 8 + [2], [1] * 9  # rank 0 has both micro-batches of the short window
    assert column(done, "collectives") == [several, several, once, once] * 2
    losses = column(done, "loss")
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][1] != pytest.approx(losses[0][0], rel=1e-4), "the control: two updates are told apart"


def test_observed_batch_gives_the_same_losses_in_all_six_splits(tmp_path: Path) -> None:
    done = run(tmp_path, "observed_batch", "budget.updates=3")
    made = [p["arithmetic"] for p in plans(done)]
    splits = [(a["processes"], a["accum"], a["per_device"], a["observed"]) for a in made]
    assert splits == [(1, 1, 64, 64), (1, 4, 16, 64), (2, 1, 32, 64), (2, 4, 8, 64), (4, 1, 16, 64), (4, 4, 4, 64)]
    losses = column(done, "loss")
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=2e-6)
    assert losses[0][1] != pytest.approx(losses[0][0], rel=2e-6)
    table = {f"| {' | '.join(str(n) for n in s)} |" for s in splits}
    from runner.compose.sources import data_folder

    told = (data_folder("recipes") / "observed_batch.yaml").read_text().splitlines()
    assert table <= {" ".join(line.strip("# ").split()) for line in told}, (
        "the table in the recipe is the one that runs"
    )


def test_observed_batch_needs_a_model_without_dropout(tmp_path: Path) -> None:
    """The control of the test above: with dropout, splits of other sizes have other masks."""
    done = run(tmp_path, "observed_batch", "budget.updates=3", "task.dropout=0.5", "hardware=cpu")
    one, four = column(done, "loss")
    assert one != pytest.approx(four, rel=2e-6)


def test_learning_rate_scaling_scales_in_one_half_of_its_jobs(tmp_path: Path) -> None:
    done = run(tmp_path, "learning_rate_scaling", "budget.updates=2")
    assert [p["arithmetic"]["observed"] for p in plans(done)] == [16, 32, 64] * 2
    first = [rates[0] for rates in column(done, "lr")]
    assert first == pytest.approx([0.02, 0.02, 0.02, 0.02, 0.04, 0.08])


def test_precision_and_accumulation_differs_by_batch_and_the_command_line_wins_over_its_sweep(tmp_path: Path) -> None:
    done = run(tmp_path, "precision_and_accumulation", "budget.updates=3", "seed=7")
    made = plans(done)
    assert {p["config"]["seed"] for p in made} == {7}
    setups = [(p["config"]["precision"]["name"], p["arithmetic"]["accum"]) for p in made]
    assert setups == [("fp32", 1), ("fp32", 4), ("bf16", 1), ("bf16", 4)]
    assert len({p["experiment"] for p in made}) == 1, "four setups of one experiment"
    fp32, _, bf16, _ = column(done, "loss")
    assert fp32 != pytest.approx(bf16, rel=1e-6)
    assert fp32 == pytest.approx(bf16, rel=0.05)


def test_quickstart_ends_with_the_verdict_against_the_reference_that_is_shipped(tmp_path: Path) -> None:
    done = run(tmp_path, "quickstart", "hardware=2cpu", "accum=2")
    assert "accuracy" in done.out
    assert " against the reference of recipe=quickstart: equal: " in done.out
    own, start = tmp_path / "own", done.folder
    kept = runner(start, "keep", str(done.run()), "recipe=quickstart", "--to", str(own)).expect(0)
    assert f"note: it is found once RUNNER_RECIPES names {own}" in kept.out
    assert [f.name for f in own.iterdir()] == ["quickstart.reference.json"]
    again = runner(start, "recipe=quickstart", "budget.epochs=2").expect(0)
    assert " against the reference of recipe=quickstart: not comparable: budget.epochs 1 against 2" in again.out


@pytest.mark.parametrize(
    ("file", "right", "wrong", "update"),
    [
        ("tasks/digits.py", 'reduction="sum"', 'reduction="sum", label_smoothing=0.001', 1),
        ("loop.py", "sums[1] / t.sync", "sums[1].clamp(min=64) / t.sync", 23),  # the short window, as if it were full
    ],
)
def test_a_broken_copy_differs_from_the_shipped_reference(
    tmp_path: Path, file: str, right: str, wrong: str, update: int
) -> None:
    """The control: the very run that ends well above, by a copy of the program with one line broken."""
    for folder in ("runner", "conf", "recipes"):
        shutil.copytree(PROJECT / folder, tmp_path / "copy" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "copy" / "runner" / file
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, wrong))
    done = runner(tmp_path, "recipe=quickstart", path=[tmp_path / "copy"]).expect(1)
    assert f" against the reference of recipe=quickstart: different: from update {update}: " in done.out
