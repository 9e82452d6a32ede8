"""Sweeps by other launchers and sweepers than Hydra's own: the same jobs, folders, table, comparison and exit code."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.commands import Done, facts, marked, rows, runner, started, status, table, tiny, until, workshop

pytestmark = pytest.mark.ranks

SWEEP = [*tiny(), "hardware.threads=1", "-m", "seed=0,1", "task.fail=nobody,rank1"]
STATES = ["finished", "failed", "finished", "failed"]
RAY = "+hydra.launcher.ray.init.num_cpus=2"


def needs(plugin: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec("hydra_plugins") is None or importlib.util.find_spec(plugin) is None
    return pytest.mark.skipif(absent, reason=f"{plugin} is not installed")


JOBLIB = needs("hydra_plugins.hydra_joblib_launcher")


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return runner(workshop(tmp_path_factory.mktemp("basic") / "start"), *SWEEP).expect(1)


def _columns(done: Done) -> list[list[str]]:
    """The table's rows without what time decides."""
    return [line.split()[:7] for line in table(done, 4)]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["hydra/launcher=joblib"], marks=JOBLIB, id="joblib"),
        pytest.param(["hydra/launcher=ray", RAY], marks=[needs("ray"), pytest.mark.slow], id="ray"),
    ],
)
def test_jobs_elsewhere_are_the_jobs_of_the_basic_launcher(basic: Done, launcher: list[str], tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *SWEEP, *launcher).expect(1)
    ours, theirs = sorted(done.runs()), sorted(basic.runs())
    assert [r.name for r in ours] == [r.name for r in theirs] == ["0", "1", "2", "3"]
    assert [status(r)["state"] for r in ours] == STATES
    for run, other in zip(ours, theirs, strict=True):
        assert (run / "overrides.yaml").read_text() == (other / "overrides.yaml").read_text()
        assert (run / "config.yaml").read_text() == (other / "config.yaml").read_text()
    assert facts(ours[0]) == facts(theirs[0])
    assert facts(ours[0])["updates"] != facts(theirs[2])["updates"], "the control: another seed is told apart"
    assert _columns(done) == _columns(basic)
    told = [line for line in done.lines() if re.match(r"#[13]: rank 1 of 2 failed: ValueError", line)]
    assert len(told) == 2, "each failure is told, with its job's number"
    assert (ours[0].parent / "report.html").exists()
    processes = {status(r)["pid"] for r in ours}
    assert len(processes) > 1 or len({status(r)["pid"] for r in theirs}) == 1
    assert processes.isdisjoint({status(r)["pid"] for r in theirs})


@JOBLIB
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_jobs_elsewhere_end_with_the_command(number: signal.Signals, code: int, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    slow = [*tiny(updates=100_000), "task.pause=0.05", "-m", "seed=0,1,2", "hydra/launcher=joblib"]
    with started(start, *slow, "hydra.launcher.n_jobs=2") as command:
        until(lambda: sum(bool(rows(f)) for f in start.rglob("updates.jsonl")) == 2, 90, "two jobs train at once")
        os.kill(command.process.pid, number)
        done = command.wait(20).expect(code)
        until(lambda: not marked(command.mark), 20, "nothing is left")
    assert {status(r)["state"] for r in done.runs()} == {"interrupted"}
    assert len(done.runs()) == 2, "the third job is not started any more"


@needs("optuna")
def test_optuna_gets_the_evaluation_s_loss(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    space = ["optim.lr=interval(0.001,0.1)", "task.width=choice(4,8)", "task.fail=choice(nobody,rank0)"]
    search = [
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=6",
        "hydra.sweeper.n_jobs=3",
        "hydra.sweeper.sampler.seed=1",
    ]
    done = runner(start, *tiny(processes=1), *space, *search, "-m").expect(1)
    runs = sorted(done.runs())
    assert [r.name for r in runs] == [str(i) for i in range(6)], "a failed trial does not end the search"
    assert {status(r)["state"] for r in runs} == {"finished", "failed"}
    losses = {r: rows(r / "evals.jsonl")[-1]["loss"] for r in runs if status(r)["state"] == "finished"}
    best = min(losses, key=losses.__getitem__)
    found = yaml.safe_load((best.parent / "optimization_results.yaml").read_text())
    assert found["best_value"] == losses[best]
    assert f"- optim.lr={found['best_params']['++optim.lr']}\n" in (best / "overrides.yaml").read_text()
    (line,) = [line for line in done.out.splitlines() if line.startswith("best: ")]
    assert line.endswith(f"{losses[best]:.4f}")
    assert not any("float-castable" in line for line in done.lines())
