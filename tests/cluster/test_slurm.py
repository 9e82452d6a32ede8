"""Runs under a real Slurm of two nodes: `launch=slurm`, sweeps as arrays, srun as one command, and the end of them all."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.slurm import cluster, missing
from tests.commands import Command, Done, facts, marked, rows, runner, started, status, table, tiny, until, workshop

REASON = f"Slurm's {', '.join(missing())} are not installed" if missing() else "only root can start Slurm's daemons"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()) or os.getuid() != 0, reason=REASON),
    pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed"),
]
SLURM = ["launch=slurm", "launch.poll=1"]


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The configuration of a Slurm that lasts as long as this file's tests. Its folder is short: paths of sockets must be."""
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as configuration:
        yield str(configuration)


def asked(conf: str, *command: str) -> str:
    environment = {**os.environ, "SLURM_CONF": conf}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def queue(conf: str) -> list[str]:
    """The jobs that Slurm has not ended yet."""
    return asked(conf, "squeue", "--noheader", "--array", "--format=%i").split()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The run that all others should equal: two processes of this machine."""
    return runner(workshop(tmp_path_factory.mktemp("here") / "start"), *tiny()).expect(0)


def test_one_run_over_two_nodes_is_one_job_and_one_folder(conf: str, here: Done, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    done = runner(start, *tiny(), "hardware=2node", *SLURM, SLURM_CONF=conf).expect(0)
    run = done.run()
    assert facts(run) == facts(here.run())
    assert facts(run)["updates"] != facts(here.run())["evals"], "the control: facts can differ"
    assert f"run folder: {run}" in done.out.replace("\n", " ")
    told = status(run)
    assert (told["state"], told["slurm"] in done.out) == ("finished", True)
    nodes = json.loads((run / "environment.json").read_text())["nodes"]
    assert list(nodes) == ["1"], "the second node has joined from a task of its own"


def test_srun_is_one_command_in_all(conf: str, here: Done, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    program = [
        "-c",
        "import os, sys; os.execvp('srun', ['srun', '-N2', sys.executable, '-m', 'runner', *sys.argv[1:]])",
    ]
    done = runner(start, *tiny(), "hardware=2node", program=program, SLURM_CONF=conf).expect(0)
    assert facts(done.run()) == facts(here.run())


def test_a_sweep_is_job_arrays_with_the_table_and_verdicts_of_any_sweep(conf: str, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    swept = ["hardware=2cpu,2node", "task.fail=nobody,rank1"]
    done = runner(start, *tiny()[:2], *tiny()[3:], *swept, *SLURM, "-m", SLURM_CONF=conf).expect(1)
    runs = sorted(done.runs())
    assert [r.name for r in runs] == ["0", "1", "2", "3"]
    assert [status(r)["state"] for r in runs] == ["finished", "failed", "finished", "failed"]
    numbers = [status(r)["slurm"] for r in runs]
    assert [n.partition("_")[2] for n in numbers] == ["0", "1", "0", "1"], "an array for each kind of machine"
    assert len({n.partition("_")[0] for n in numbers}) == 2
    for line, run in zip(table(done, 4), runs, strict=True):
        assert status(run)["state"] in line
    assert sum("the machine of rank 1 is on fire" in line for line in done.lines() if line.startswith("#")) == 2
    assert "identical 0 and 2" in done.out or "equal 0 and 2" in done.out
    assert facts(runs[0]) == facts(runs[2])


@contextmanager
def training(start: Path, conf: str, *more: str) -> Iterator[Command]:
    """A command whose run has made updates."""
    slow = [*tiny(updates=100_000), "task.pause=0.05", "hardware=2node", *SLURM, *more]
    with started(start, *slow, SLURM_CONF=conf) as command:
        until(lambda: any(map(rows, start.rglob("updates.jsonl"))), 90, "the run trains")
        yield command


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "scancel", "node", "limit"])
def test_the_job_ends_with_its_command_and_the_command_with_its_job(conf: str, how: str, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    with training(start, conf, *(["launch.time=1"] if how == "limit" else [])) as command:
        assert len(queue(conf)) == 1
        if how == "scancel":
            asked(conf, "scancel", *queue(conf))
        elif how == "node":
            asked(conf, "scontrol", "update", "nodename=n2", "state=down", "reason=test")
        elif how != "limit":
            command.process.send_signal(getattr(signal, how))
        done = command.wait(90 if how == "limit" else 30).expect({"SIGTERM": 143, "SIGKILL": -9}.get(how, 1))
        if how == "node":
            asked(conf, "scontrol", "update", "nodename=n2", "state=idle")
        until(lambda: not queue(conf), 30, "Slurm has ended the job, and does not queue it again")
        until(lambda: not marked(command.mark), 15, "nothing is left")
        state = "failed" if how == "node" else "interrupted"
        until(lambda: status(done.run())["state"] == state, 10, "the run says so")
    said = {"scancel": "is CANCELLED", "node": "is NODE_FAIL", "limit": "the time limit of its job is near"}
    assert said.get(how, "SIGTERM") in status(done.run())["reason"]
    if how in said:
        assert len(done.lines()) == 1 and said[how] in done.err


def test_who_cancels_one_job_of_an_array_leaves_the_others(conf: str, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    slow = [*tiny(processes=1, updates=100_000), "task.pause=0.05", *SLURM, "-m", "seed=0,1,2"]
    with started(start, *slow, SLURM_CONF=conf) as command:
        until(lambda: sum(bool(rows(f)) for f in start.rglob("updates.jsonl")) == 3, 90, "all train")
        runs = {r.name: r for r in (f.parent for f in start.rglob("status.json"))}
        asked(conf, "scancel", status(runs["1"])["slurm"])
        until(lambda: status(runs["1"])["state"] == "interrupted", 20, "it says so")
        before = len(rows(runs["2"] / "updates.jsonl"))
        until(lambda: len(rows(runs["2"] / "updates.jsonl")) > before, 20, "the others go on")
        asked(conf, "scancel", status(runs["0"])["slurm"].partition("_")[0])
        done = command.wait(40).expect(1)
    assert [line.split()[1] for line in table(done, 3)] == ["interrupted"] * 3
    for run in runs.values():
        assert f"its Slurm job {status(run)['slurm']} is CANCELLED" in status(run)["reason"]


def test_a_job_that_waits_is_told_of_and_cancelled(conf: str, tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    later = [*tiny(), *SLURM, "launch.extra.begin=now+1hour"]
    with started(start, *later, SLURM_CONF=conf) as command:
        until(lambda: "waits (BeginTime)" in command.said()[0], 30, "it says why the job does not start")
        command.process.send_signal(signal.SIGINT)
        done = command.wait(30).expect(130)
    assert (status(done.run())["state"], queue(conf)) == ("interrupted", [])


def test_what_slurm_refuses_is_one_line(conf: str, tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *tiny(), *SLURM, "launch.partition=nope", SLURM_CONF=conf).expect(1)
    (line,) = done.lines()
    assert line.startswith("Slurm did not take the job:")
    assert "invalid partition" in line
    assert status(done.run())["state"] == "failed"


def test_what_cannot_be_had_of_a_sweep_fails_by_itself(conf: str, tmp_path: Path) -> None:
    """Three nodes of two, a file in a folder's way; the jobs beside them run."""
    start = workshop(tmp_path / "start")
    (start / "out").mkdir()
    (start / "out" / "2").write_text("in its way")
    common = [*tiny()[:2], "batch.size=6", "budget.updates=3"]
    swept = ["hardware=1node,3node", "seed=0,1", "-m", "hydra.sweep.dir=out"]
    done = runner(start, *common, *swept, *SLURM, SLURM_CONF=conf).expect(1)
    assert [line.split()[2] for line in table(done, 4)] == ["finished", "finished", "failed", "failed"]
    refused = "Slurm did not take the job: Batch job submission failed: Node count specification invalid"
    assert sorted(done.lines()) == [
        f"#2: cannot make the run's folder {start / 'out' / '2'}: File exists",
        f"#3: {refused}",
    ]
    assert status(start / "out" / "3")["reason"] == refused


def test_without_slurm_one_line_says_what_is_missing(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python").symlink_to(shutil.which(sys.executable) or sys.executable)
    done = runner(workshop(tmp_path / "start"), *tiny(), *SLURM, PATH=str(bare)).expect(2)
    (line,) = done.lines()
    assert "sbatch" in line
    assert "launch=local" in line
    assert not done.runs()
