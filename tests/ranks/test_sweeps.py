"""Sweeps: every job runs, each is itself, one that fails keeps no other from running, and torch is loaded once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Done, facts, marked, rows, runner, started, status, table, tiny, until, workshop

pytestmark = pytest.mark.ranks

LOADED = 1.0  # CPU seconds: a process that had to load torch by itself has used more of them


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Three jobs of two processes, each with an evaluation at its end; the third is the first again."""
    start = workshop(tmp_path_factory.mktemp("sweep") / "start")
    return runner(start, *tiny(), "optim.lr=1e-3", "task.say=hello", "-m", "seed=0,1,0").expect(0)


def test_every_job_of_a_sweep_ends_with_its_own_seed(seeds: Done) -> None:
    runs = seeds.runs()
    assert [status(r)["state"] for r in runs] == ["finished"] * 3
    for run, seed in zip(runs, (0, 1, 0), strict=True):
        assert f"\nseed: {seed}\n" in (run / "config.yaml").read_text()
        assert f"- seed={seed}\n" in (run / "overrides.yaml").read_text()
        assert f'"seed": {seed},' in (run / "plan.json").read_text()
        assert [r["update"] for r in rows(run / "evals.jsonl")] == [3]
    assert len({r.parent for r in runs}) == 1, "the jobs of a sweep stand side by side"


def test_equal_seeds_give_equal_runs_and_different_ones_do_not(seeds: Done) -> None:
    first, other, again = map(facts, seeds.runs())
    assert first["updates"]
    assert first == again
    for part in ("batches", "updates", "evals", "model"):
        assert first[part] != other[part], part  # the control: the comparison sees another seed in every part


def test_a_run_alone_is_equal_to_the_same_job_of_a_sweep(seeds: Done, tmp_path: Path) -> None:
    alone = runner(workshop(tmp_path / "start"), *tiny(), "optim.lr=1e-3", "task.say=hello", "seed=0").expect(0)
    assert facts(alone.run()) == facts(seeds.runs()[0])
    assert _servers(alone.run()) != _servers(seeds.runs()[0]), "the control: another command has another fork server"


def test_the_table_of_a_sweep_names_every_job_and_its_state(seeds: Done) -> None:
    lines = table(seeds, 3)
    for line, seed in zip(lines, (0, 1, 0), strict=True):
        assert re.match(rf"\s*seed={seed}\s+finished\s+3\s+8\s", line), lines
    assert f"sweep folder: {seeds.runs()[0].parent}" in seeds.out.replace("\n", " ")


def _servers(run: Path) -> set[str]:
    """The processes that the ranks of a run were forked from."""
    logs = (run / "logs").glob("rank-*.log")
    return {m for log in logs for m in re.findall(r" parent (\d+)$", log.read_text(), re.MULTILINE)}


def _cpu_seconds(run: Path) -> list[float]:
    logs = (run / "logs").glob("rank-*.log")
    return [float(s) for log in logs for s in re.findall(r"^cpu seconds ([\d.]+)", log.read_text(), re.MULTILINE)]


def test_torch_is_loaded_once_for_all_jobs(seeds: Done) -> None:
    servers = [_servers(r) for r in seeds.runs()]
    assert servers[0] and servers[0] == servers[1] == servers[2]
    assert len(servers[0]) == 1
    for run in seeds.runs():
        used = _cpu_seconds(run)
        assert len(used) == 2
        assert max(used) < LOADED, "until it makes the task, a rank has done next to nothing"
    source = "import time, torch, runner.worker, torch._dynamo; print(time.process_time())"
    control = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120)
    assert float(control.stdout) > LOADED, "the control: a process that loads torch by itself is told apart"


def test_a_job_that_fails_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *tiny(), "-m", "task.fail=rank0,nobody,rank1").expect(1)
    runs = done.runs()
    assert [status(r)["state"] for r in runs] == ["failed", "finished", "failed"]
    lines = table(done, 3)
    for line, name, state in zip(lines, ("rank0", "nobody", "rank1"), ("failed", "finished", "failed"), strict=True):
        assert re.match(rf"\s*task\.fail={name}\s+{state}\s", line), lines
    for run, rank in ((runs[0], 0), (runs[2], 1)):
        message = f"rank {rank} of 2 failed: ValueError: the machine of rank {rank} is on fire"
        assert status(run)["reason"] == message
        assert message in done.lines()
        assert f"task.fail=rank{rank}: failed: {message}" in done.out
    assert [r["update"] for r in rows(runs[1] / "updates.jsonl")] == [1, 2, 3]


def test_a_job_that_is_interrupted_ends_the_sweep(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    slow = [*tiny(updates=100_000), "task.pause=0.05"]
    with started(start, *slow, "-m", "seed=0,1") as command:
        until(lambda: any(map(rows, start.rglob("updates.jsonl"))), 60, "the first job trains")
        os.killpg(command.process.pid, signal.SIGINT)
        done = command.wait(15).expect(130)
        until(lambda: not marked(command.mark), 15, "nothing is left")
    assert [status(r)["state"] for r in done.runs()] == ["interrupted"]
    assert " interrupted " in table(done, 1)[0]


def test_a_recipe_may_be_a_sweep(tmp_path: Path) -> None:
    """`recipe=gradient_sync` at its smallest: the policies give equal updates; what they send differs."""
    start = workshop(tmp_path / "start")
    task = ["task=custom", "task._target_=mytask.MyTask", "task.items=64", "batch.size=2", "budget.updates=2"]
    task += ["repeat=1", "hardware=2cpu", "link=none"]  # the recipe would go over two nodes, too, three times
    done = runner(start, "recipe=gradient_sync", *task).expect(0)
    runs = done.runs()
    assert len(runs) == 4
    policies = [re.search(r"policy: (\w+)", (r / "config.yaml").read_text())[1] for r in runs]  # type: ignore[index]
    assert policies == ["every_batch", "backward_only", "no_sync", "accumulate"]
    sent = [[r["collectives"] for r in rows(run / "updates.jsonl")] for run in runs]
    assert sent == [[4, 4], [4, 4], [1, 1], [1, 1]]
    losses = [[r["loss"] for r in rows(run / "updates.jsonl")] for run in runs]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
    assert losses[0][1] != pytest.approx(losses[0][0], rel=1e-5), "the control: two updates of one run are told apart"
