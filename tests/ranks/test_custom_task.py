"""A task is any class, wherever the command is started; one that breaks its contract is told so before it trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml

from tests.commands import rows, runner, status, tiny, workshop

pytestmark = pytest.mark.ranks


def test_a_class_of_ones_own_is_trained_from_any_folder(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    done = runner(start, *tiny(), "task.width=64", "task.say=hello").expect(0)
    run = done.run()
    weights = torch.load(run / "model.pt")
    assert {k: tuple(v.shape) for k, v in weights.items()} == {"weight": (1, 64), "bias": (1,)}
    assert all(v.device.type == "cpu" and v.dtype is torch.float32 for v in weights.values())
    (row,) = rows(run / "evals.jsonl")
    assert row["weight"] == 5.0
    assert row["positive"] in {n / 5 for n in range(6)}
    for rank in (0, 1):
        assert f"hello rank {rank}" in (run / "logs" / f"rank-{rank}.log").read_text()
    assert "hello rank 0" in done.out, "what rank 0 prints is seen"


# the task, and what the one line about it must name
BROKEN = {
    "Streaming": ["iterable dataset", "Stream", "map-style", "__len__", "__getitem__"],
    "MeanOnly": ["MeanOnly.loss returned a tensor of shape ()", "sum of the losses, weight"],
}


def test_a_task_that_breaks_its_contract_is_told_so_before_it_trains(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    targets = ",".join(f"mytask.{name}" for name in [*BROKEN, "MyTask"])
    common = ["task=custom", "hardware=2cpu", "batch.size=8", "budget.updates=3"]
    done = runner(start, *common, "-m", f"task._target_={targets}").expect(1)
    *broken, sound = done.runs()
    for run, (name, told) in zip(broken, BROKEN.items(), strict=True):
        found = status(run)
        assert found["state"] == "failed", name
        for text in told:
            assert text in found["reason"]
        assert found["reason"] in done.lines(), "the terminal says the same, in one line"
        assert rows(run / "updates.jsonl") == [] and not (run / "model.pt").exists()
    assert "Traceback" not in done.err, "the line says it all"
    assert status(sound)["state"] == "finished"  # the control: the same command trains a sound task
    assert len(rows(sound / "updates.jsonl")) == 3


def test_what_only_making_the_task_shows_is_told_by_the_worker(tmp_path: Path) -> None:
    """Its source does not tell what the decorated class takes, nor that it lacks a method."""
    start = workshop(tmp_path / "start")
    late = "from mytask import Lossless as Early\nkeep = lambda kind: kind\n@keep\nclass Lossless(Early):\n    pass\n"
    (start / "late.py").write_text(late)
    targets = ["task=custom", "task._target_=late.Lossless", "hardware=cpu"]
    done = runner(start, *targets, "task.widht=64").expect(1)
    assert re.search(r"late\.Lossless cannot be made with the arguments .*widht", done.err)
    done = runner(start, *targets).expect(1)
    assert "Lossless has no method loss; a task needs model, train_data, loss" in done.err
    assert "Traceback" not in done.err


def test_a_relative_path_of_the_data_is_meant_from_the_folder_of_the_command(tmp_path: Path) -> None:
    """On every process; files of the same name lie where else one might look."""
    start = workshop(tmp_path / "start")
    for folder, value in ((start, 1.5), (tmp_path, 2.5), (start / "outputs", 3.5)):
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "value.txt").write_text(str(value))
    run = runner(start, *tiny(), "task.path=data/value.txt").expect(0).run()
    read = [re.findall(r"^read (.*)$", (run / "logs" / f"rank-{r}.log").read_text(), re.MULTILINE) for r in (0, 1)]
    assert read == [["1.5"], ["1.5"]]


def test_what_a_task_and_the_files_get_is_resolved_and_plain(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    (start / "recipes").mkdir()
    recipe = "optim:\n  lr: 1e-3\ntask:\n  layers: [[1, 2], [3, ['${seed}']]]\n  depth: '${accum}'\n"
    (start / "recipes" / "mine.yaml").write_text(recipe)
    typed = ["recipe=mine", *tiny(processes=1), "task.say=hello", "accum=2", "seed=7", "schedule=constant"]
    run = runner(start, *typed).expect(0).run()
    told = re.search(r"^told (.*)$", (run / "logs" / "rank-0.log").read_text(), re.MULTILINE)
    assert told is not None
    wanted = {"layers": [[1, 2], [3, [7]]], "depth": 2}
    assert json.loads(told[1]) == wanted
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert {k: config["task"][k] for k in wanted} == wanted
    assert config["optim"]["lr"] == 0.001 and isinstance(config["optim"]["lr"], float)
    assert "${" not in (run / "config.yaml").read_text()
    assert "recipe" not in config and "hydra" not in config
    assert yaml.safe_load((run / "overrides.yaml").read_text()) == typed
    assert {row["lr"] for row in rows(run / "updates.jsonl")} == {0.001}
    assert json.loads((run / "plan.json").read_text())["config"]["optim"]["lr"] == 0.001


def test_a_learning_rate_of_a_sweep_is_a_number_everywhere(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    done = runner(start, *tiny(processes=1), "schedule=constant", "-m", "optim.lr=1e-3,2e-3").expect(0)
    for run, rate in zip(done.runs(), (0.001, 0.002), strict=True):
        found = yaml.safe_load((run / "config.yaml").read_text())["optim"]["lr"]
        assert found == rate and isinstance(found, float)
        assert {row["lr"] for row in rows(run / "updates.jsonl")} == {rate}
        assert json.loads((run / "plan.json").read_text())["arithmetic"]["lr"] == rate


def test_the_plan_counts_what_a_run_then_sends(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    typed = ["hardware=2cpu", "accum=2", "budget.updates=2", "task.width=4"]
    policies = ("accumulate", "every_batch")
    plans = [json.loads(runner(start, "plan", *typed, f"sync={p}", "--json").expect(0).out) for p in policies]
    runs = runner(start, *typed, "-m", f"sync={','.join(policies)}").expect(0).runs()
    measured = []
    for run in runs:
        sent = {(row["collectives"], row["bytes"]) for row in rows(run / "updates.jsonl")}
        assert len(sent) == 1, "both updates are of full windows"
        measured.extend(sent)
    assert [(p["comm"]["collectives"], p["comm"]["bytes"]) for p in plans] == measured
    assert measured[0] != measured[1]  # the control: the plan of the other policy is not taken for this one's
    for plan, run in zip(plans, runs, strict=True):
        written = json.loads((run / "plan.json").read_text())
        assert {k: written[k] for k in ("arithmetic", "comm", "experiment", "setup")} == {
            k: plan[k] for k in ("arithmetic", "comm", "experiment", "setup")
        }
