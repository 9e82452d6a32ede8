"""Run folders: one run each, files whole or absent, a status that keeps what is known."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner import rundir
from runner.errors import RecordError
from runner.plan import Plan
from runner.rundir import write_text
from runner.summary import Row
from tests.running import plan_of


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("Scalar", None, "batch.size=4")


def test_a_folder_holds_plan_and_configuration(tmp_path: Path, plan: Plan) -> None:
    run = rundir.create(tmp_path / "a" / "b", plan, "config: 1\n", "[x]\n")
    assert run.path == tmp_path / "a" / "b"
    assert run.read_plan() == plan
    assert (run.config.read_text(), run.overrides.read_text()) == ("config: 1\n", "[x]\n")
    assert run.read_status()["state"] == "running"


def test_two_runs_never_share_a_folder(tmp_path: Path, plan: Plan) -> None:
    """Twenty runs that all want the same folder get twenty, the first one the very folder; none is written over."""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda n: rundir.create(tmp_path / "run", plan, f"{n}\n", ""), range(20)))
    assert len({run.path for run in runs}) == 20
    assert tmp_path / "run" in {run.path for run in runs}
    assert all(run.path.name.startswith("run") for run in runs)
    assert [run.config.read_text() for run in runs] == [f"{n}\n" for n in range(20)]


def test_a_foreign_folder_can_be_claimed_but_not_a_run(tmp_path: Path, plan: Plan) -> None:
    """A folder that is there but holds no run is taken (Hydra makes it); one that holds a run is not."""
    (tmp_path / "run").mkdir()
    first = rundir.create(tmp_path / "run", plan, "", "")
    first.write_status("finished")
    second = rundir.create(tmp_path / "run", plan, "", "")
    assert (first.path == tmp_path / "run", second.path == first.path) == (True, False)
    assert first.read_status()["state"] == "finished"


def test_a_folder_that_could_not_be_filled_does_not_say_that_it_runs(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").touch()
    with pytest.raises(RecordError, match="File exists"):
        rundir.create(tmp_path / "run", plan, "", "")
    run = rundir.RunFolder(tmp_path / "run")
    assert run.read_status()["state"] == "failed"
    row = Row.of(("seed=1",), run)
    assert (row.state, row.summary) == ("failed", None)
    assert row.reason == f"cannot make the run's folder {run.path}: File exists"


def test_status_keeps_what_is_known(tmp_path: Path, plan: Plan) -> None:
    run = rundir.create(tmp_path / "run", plan, "", "")
    started = run.read_status()["started"]
    run.write_status("failed", reason="because", rank=1, trace=None)
    status = run.read_status()
    assert (status["state"], status["reason"], status["rank"], status["started"]) == ("failed", "because", 1, started)
    assert "trace" not in status


def test_files_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file, and nothing beside it."""
    file = tmp_path / "status.json"
    rundir.write_text(file, json.dumps({"old": True}))
    plain = Path.write_bytes

    def half(self: Path, content: bytes) -> int:
        plain(self, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(RecordError, match=r"cannot write .*status\.json: No space left on device"):
        rundir.write_text(file, json.dumps({"old": False}))
    assert json.loads(file.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--report /dev/null`, typed by root, must leave the device where it is."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(RecordError, match=r"cannot write .*: Is a directory"):
        write_text(tmp_path, "anything")
