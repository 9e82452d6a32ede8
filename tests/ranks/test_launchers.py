"""Sweeps by other launchers and sweepers than Hydra's own: the same jobs, folders, table, comparison and exit code."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
from pathlib import Path

import pytest
import yaml

from tests.commands import Done, facts, listening, marked, rows, runner, started, status, table, tiny, until, workshop

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


@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    [
        pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], number, code, marks=JOBLIB)
        for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9))
    ]
    + [
        pytest.param(["hydra/launcher=ray", RAY], number, code, marks=[needs("ray"), pytest.mark.slow])
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130))
    ],
)
def test_jobs_elsewhere_end_with_the_command(
    launcher: list[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    start = workshop(tmp_path / "start")
    slow = [*tiny(updates=100_000), "task.pause=0.05", "-m", "seed=0,1,2", *launcher]
    with started(start, *slow) as command:
        until(lambda: sum(bool(rows(f)) for f in start.rglob("updates.jsonl")) == 2, 90, "two jobs train at once")
        if number is signal.SIGINT:  # from a terminal, to all
            os.killpg(command.process.pid, number)
        else:
            os.kill(command.process.pid, number)
        done = command.wait(20).expect(code)
        until(lambda: not marked(command.mark), 20, "nothing is left")
    assert {status(r)["state"] for r in done.runs()} == {"interrupted"}
    assert len(done.runs()) == 2, "the third job is not started any more"
    if number is not signal.SIGKILL:
        assert _told(done, 2) == ["interrupted", "interrupted"]
        assert "gave up" not in done.err


@needs("ray")
@pytest.mark.slow
def test_a_cluster_of_ray_s_that_is_there_is_used_and_left(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    head = ["-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats"]
    with started(start, program=[*head, *quiet], RAY_AUTH_MODE="disabled") as cluster:
        until(lambda: port in listening(marked(cluster.mark)), 60, "the cluster is there")
        where = ["hydra/launcher=ray", f"hydra.launcher.ray.init.address=127.0.0.1:{port}"]
        done = runner(start, *tiny(processes=1), "-m", "seed=0,1", *where, RAY_AUTH_MODE="disabled").expect(0)
        assert _told(done, 2) == ["finished", "finished"]
        assert port in listening(marked(cluster.mark))


def _told(done: Done, jobs: int) -> list[str]:
    """The status of each job in the table."""
    return [line.split()[1] for line in table(done, jobs)]


@pytest.mark.parametrize(
    "launcher", [pytest.param([], id="basic"), pytest.param(["hydra/launcher=joblib"], marks=JOBLIB)]
)
def test_a_job_that_cannot_make_its_folder_is_told_and_counted(launcher: list[str], tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    (start / "out").mkdir()
    (start / "out" / "1").write_text("in its way")
    swept = ["-m", "seed=0,1,2", "hydra.sweep.dir=out", *launcher]
    done = runner(start, *tiny(processes=1), "hardware.threads=1", *swept).expect(1)
    assert _told(done, 3) == ["finished", "failed", "finished"]
    what = f"cannot make the run's folder {start / 'out' / '1'}: File exists"
    assert done.lines() == [f"#1: {what}"]
    assert f"seed=1: failed: {what}" in done.out
    assert sorted(r.name for r in done.runs()) == ["0", "2"]
    assert (start / "out" / "report.html").exists(), "the others are compared"


@JOBLIB
def test_jobs_of_which_nothing_is_heard_are_told_and_counted(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    slow = [*tiny(processes=1, updates=100_000), "task.pause=0.05", "-m", "seed=0,1,2,3", "hydra/launcher=joblib"]
    with started(start, *slow, "hydra.launcher.n_jobs=2") as command:
        until(lambda: sum(bool(rows(f)) for f in start.rglob("updates.jsonl")) == 2, 90, "two jobs train at once")
        os.kill(status(next(start.rglob("status.json")).parent)["pid"], signal.SIGKILL)
        done = command.wait(60).expect(1)
        until(lambda: not marked(command.mark), 20, "nothing is left")
    assert _told(done, 4) == ["interrupted", "interrupted", "failed", "failed"]
    assert sum("nothing was heard of it" in line for line in done.lines()) == 2
    assert any(line.startswith("joblib launcher gave up: TerminatedWorkerError") for line in done.lines())


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
