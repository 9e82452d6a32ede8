"""One folder for each run, whole whatever happens, and nothing anywhere else."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from runner import records
from runner.errors import RecordError
from tests.commands import Done, files, marked, rows, runner, started, status, tiny, until, workshop

pytestmark = pytest.mark.ranks

TABLES = ("batches.jsonl", "updates.jsonl", "evals.jsonl")
FILES = {
    "config.yaml", "overrides.yaml", "plan.json", "environment.json", "status.json", *TABLES, "model.pt",
    "logs/rank-0.log", "logs/rank-1.log",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run of two processes that went well."""
    start = workshop(tmp_path_factory.mktemp("folders") / "start")
    return runner(start, *tiny(updates=4), "accum=2", "task.say=hello", OMP_NUM_THREADS="2").expect(0)


def test_a_run_leaves_the_files_that_are_promised_and_no_others(finished: Done) -> None:
    run = finished.run()
    assert files(run) == FILES
    assert files(finished.folder) == {"mytask.py"} | {str(run.relative_to(finished.folder) / f) for f in FILES}
    assert run.parent.parent == finished.folder / "outputs"
    assert str(run) in finished.out.replace("\n", ""), "the terminal says where it is"


def test_the_rows_are_those_of_the_design(finished: Done) -> None:
    run = finished.run()
    batches, updates, evals = (rows(run / name) for name in TABLES)
    assert {(r["update"], r["rank"], r["micro"]) for r in batches} == {
        (u, m // 2, m) for u in (1, 2, 3, 4) for m in range(4)
    }
    assert set(batches[0]) == {"update", "micro", "rank", "epoch", "loss", "weight", "seconds", "synced"}
    assert [r["update"] for r in updates] == [1, 2, 3, 4]
    promised = "update epoch loss weight lr grad_norm seconds items digest collectives bytes skipped scale peak_memory"
    assert set(updates[0]) == set(promised.split())
    assert set(evals[0]) == {"update", "epoch", "loss", "weight", "positive"}


def test_status_and_environment_say_how_the_run_was_made(finished: Done) -> None:
    run = finished.run()
    found = status(run)
    assert found["state"] == "finished"
    assert found["started"] < found["finished"] <= time.time()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["started_in"] == str(finished.folder)
    assert environment["versions"]["torch"]
    assert environment["threads"] >= 1
    assert environment["variables"]["OMP_NUM_THREADS"] == "2"
    typed = [*tiny(updates=4), "accum=2", "task.say=hello"]
    assert environment["command"][-len(typed) :] == typed, "the command as it was typed"


def test_runs_that_start_together_have_a_folder_each(tmp_path: Path) -> None:
    """Six at once in one folder; three of them were even told to use the same run folder."""
    start = workshop(tmp_path / "start")
    with ExitStack() as stack:
        commands = []
        for seed in range(6):
            told = ["hydra.run.dir=outputs/same/one"] if seed % 2 else []
            command = started(start, *tiny(processes=1, updates=2), f"seed={seed}", *told)
            commands.append(stack.enter_context(command))
        for command in commands:
            command.wait(150).expect(0)
    runs = Done(0, "", "", start).runs()
    assert len(runs) == 6
    assert sorted(json.loads((r / "plan.json").read_text())["config"]["seed"] for r in runs) == list(range(6))
    assert len([r for r in runs if r.parent.name == "same"]) == 3
    for run in runs:
        assert status(run)["state"] == "finished"
        assert [r["update"] for r in rows(run / "updates.jsonl")] == [1, 2], "nobody else wrote into it"
        assert files(run) == FILES - {"logs/rank-1.log"}
    assert {f.partition("/")[0] for f in files(start)} == {"mytask.py", "outputs"}


def _consistent(run: Path) -> int:
    """The number of updates in a run's rows, read by the project's own reader. Fails if they contradict each other."""
    updates = list(records.read(run / "updates.jsonl"))
    batches = list(records.read(run / "batches.jsonl"))
    assert [r["update"] for r in updates] == list(range(1, len(updates) + 1))
    places = [(r["update"], r["micro"]) for r in batches]
    assert len(set(places)) == len(places), "a micro-batch has one row"
    assert {u for u, _ in places} >= set(range(1, len(updates))), "no update without its micro-batches"
    return len(updates)


def test_rows_are_readable_after_a_kill_of_everything(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    moment = random.uniform(0.0, 0.6)
    with started(start, *tiny(updates=1_000_000)) as command:
        until(lambda: any(rows(f) for f in start.rglob("updates.jsonl")), 60, "it trains")
        time.sleep(moment)
        for pid in marked(command.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run = command.wait(15).expect(-signal.SIGKILL).run()
    assert _consistent(run) > 0
    assert {f for f in files(run) if f.endswith(".pt")} == set(), "no half of a model"
    for name in ("config.yaml", "plan.json", "environment.json", "status.json", "overrides.yaml"):
        assert (run / name).stat().st_size > 0


def test_a_cut_row_is_left_out_and_a_broken_one_is_told(tmp_path: Path) -> None:
    """The control of the test above: what a kill may leave, and what it may not."""
    whole = '{"update": 1, "micro": 0}\n'
    file = tmp_path / "batches.jsonl"
    file.write_text(whole + '{"update": 2, "mic')
    assert [r["update"] for r in records.read(file)] == [1]
    file.write_text(whole + '{"update": 2, "mic\n' + whole)
    with pytest.raises(RecordError, match="line 2 is not a row"):
        list(records.read(file))
    (tmp_path / "updates.jsonl").write_text('{"update": 1}\n{"update": 3}\n')
    file.write_text(whole)
    with pytest.raises(AssertionError):
        _consistent(tmp_path)


LEFT = """
import json, os, signal, sys
sys.path.insert(0, os.getcwd())
from runner.cli import main

def facts():
    return {
        "environment": dict(os.environ), "folder": os.getcwd(), "arguments": list(sys.argv),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    }

def changed():
    return sorted(k for k, value in facts().items() if value != before[k])

before = facts()
codes = [main(sys.argv[1:]) for _ in range(2)]
after = changed()
os.environ["MASTER_PORT"] = "1"; signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the control: planted changes are seen
print("LEFT " + json.dumps([codes, after, "torch" in sys.modules, changed()]))
"""


def test_a_run_changes_nothing_in_the_process_that_starts_it(tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *tiny(updates=1), program=["-c", LEFT]).expect(0)
    (line,) = [line for line in done.out.splitlines() if line.startswith("LEFT ")]
    codes, after, torch_loaded, planted = json.loads(line.removeprefix("LEFT "))
    assert codes == [0, 0] and len(done.runs()) == 2
    assert after == []
    assert not torch_loaded
    assert planted == ["environment", "signals"]
