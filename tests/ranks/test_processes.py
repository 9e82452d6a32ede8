"""However a run ends, nothing of it is left, and its folder says why it ended."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import (
    Command,
    files,
    listening,
    marked,
    open_ports,
    rows,
    runner,
    started,
    status,
    tiny,
    until,
    workshop,
)

pytestmark = pytest.mark.ranks

SECONDS = 15.0  # until nothing may be left
ENDLESS = [*tiny(updates=100_000), "data.workers=2", "task.pause=0.05", "task.say=hello"]
FAMILY = 9  # the parent, its fork server and resource tracker, two ranks, two loader workers each


def _pid_of_rank(run: Path, rank: int) -> int:
    found = re.search(r"pid (\d+)", (run / "logs" / f"rank-{rank}.log").read_text())
    assert found is not None
    return int(found[1])


def _training(command: Command) -> Path:
    """The run folder of a command, once both of its ranks have trained."""
    start = command.folder

    def both() -> Path | None:
        for run in start.glob("outputs/*/*"):
            if {row["rank"] for row in rows(run / "batches.jsonl")} == {0, 1}:
                return run
        return None

    def both_or_ended() -> Path | None:
        assert command.process.poll() is None, f"it ended by itself: {command.said()}"
        return both()

    return until(both_or_ended, 60, "both ranks have written rows")


@dataclass(frozen=True)
class Ending:
    """A way to end a run from outside, and what must come of it."""

    act: Callable[[int, Path], None]  # takes the parent's process id and the run folder
    code: int
    state: str
    reason: str
    rank: int | None = None


ENDINGS = {
    "Ctrl-C in a terminal": Ending(
        lambda parent, _: os.killpg(parent, signal.SIGINT), 130, "interrupted", "ended by SIGINT"
    ),
    "SIGINT to the parent alone": Ending(
        lambda parent, _: os.kill(parent, signal.SIGINT), 130, "interrupted", "ended by SIGINT"
    ),
    "SIGTERM to the parent": Ending(
        lambda parent, _: os.kill(parent, signal.SIGTERM), 143, "interrupted", "ended by SIGTERM"
    ),
    "SIGTERM to the whole group": Ending(
        lambda parent, _: os.killpg(parent, signal.SIGTERM), 143, "interrupted", "ended by SIGTERM"
    ),
    "SIGKILL of rank 1": Ending(
        lambda _, run: os.kill(_pid_of_rank(run, 1), signal.SIGKILL), 1, "failed", "killed by SIGKILL", 1
    ),
    "SIGKILL of the parent": Ending(
        lambda parent, _: os.kill(parent, signal.SIGKILL), -signal.SIGKILL, "interrupted", "started the run"
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_that_is_ended_leaves_nothing_behind_and_says_why(name: str, tmp_path: Path) -> None:
    ending = ENDINGS[name]
    with started(workshop(tmp_path / "start"), *ENDLESS) as command:
        run = _training(command)
        family = marked(command.mark)
        ports = listening(family)
        assert len(family) >= FAMILY, "the run is complete before it is ended"
        assert ports, "the ranks' store listens while they train"
        assert status(run)["state"] == "running"
        ending.act(command.process.pid, run)
        done = command.wait(SECONDS)
        until(lambda: not marked(command.mark), SECONDS, "no process of the run is left")
        until(lambda: not ports & open_ports(), SECONDS, "its ports are free")
        said = command.said()[1]
    done.expect(ending.code)
    found = status(run)
    assert found["state"] == ending.state
    assert ending.reason in found["reason"]
    assert found.get("rank") == ending.rank
    assert "Traceback" not in said, said


def test_an_exception_on_one_rank_ends_all_and_reaches_the_terminal(tmp_path: Path) -> None:
    with started(workshop(tmp_path / "start"), *ENDLESS, "task.fail=rank1") as command:
        done = command.wait()
        until(lambda: not marked(command.mark), SECONDS, "no process of the run is left")
    done.expect(1)
    found = status(done.run())
    message = "rank 1 of 2 failed: ValueError: the machine of rank 1 is on fire"
    assert (found["state"], found["rank"], found["reason"]) == ("failed", 1, message)
    assert done.lines()[-1] == message
    assert "raise ValueError" in done.err, "the line of the task that failed is shown"


def test_an_exception_in_a_loader_worker_is_told_with_its_rank_and_items(tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *tiny("Breaking"), "data.workers=2", "data.shuffle=false").expect(1)
    assert re.search(r"rank [01] of 2 failed: .*the disk of item 9 is gone", done.err.replace("\n", " "))
    assert re.search(r"while reading the items \[.*\b9\b.*\] of Items", done.err)
    assert "the disk of item 9 is gone" in status(done.run())["reason"]


def test_the_search_for_what_is_left_finds_a_child_that_hides(tmp_path: Path) -> None:
    """The control of the tests above: a grandchild in a session of its own, whose parents are gone, that listens."""
    hides = """
import os, socket, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.environ.clear()
s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True)
time.sleep(60)
"""
    with started(tmp_path, program=["-c", hides]) as command:
        assert command.wait(SECONDS).code == 0
        port = int(until(lambda: command.said()[0], SECONDS, "the child listens"))
        left = marked(command.mark)
        assert len(left) == 1
        assert listening(left) == {port}
        assert port in open_ports()
    assert not marked(command.mark), "leaving the block ends it"


def test_runs_at_the_same_time_do_not_meet_even_where_the_usual_port_is_taken(tmp_path: Path) -> None:
    with ExitStack() as stack:
        usual = stack.enter_context(socket.socket())
        with suppress(OSError):  # somebody has it already: just as well
            usual.bind(("127.0.0.1", 29500))
            usual.listen()
        with socket.socket() as second, pytest.raises(OSError, match="in use"):  # it is taken indeed
            second.bind(("127.0.0.1", 29500))
        folders = [workshop(tmp_path / f"start{i}") for i in range(3)]
        commands = [
            stack.enter_context(started(f, *tiny(), f"seed={i}", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"))
            for i, f in enumerate(folders)
        ]
        for seed, command in enumerate(commands):
            run = command.wait().expect(0).run()
            assert status(run)["state"] == "finished"
            assert [r["update"] for r in rows(run / "updates.jsonl")] == [1, 2, 3]
            assert f"seed: {seed}\n" in (run / "config.yaml").read_text()


def test_a_process_that_comes_late_makes_no_folder_of_its_own(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    before = files(start)
    done = runner(start, *tiny(), "task.late=2").expect(0)
    run = done.run()
    assert {f for f in files(start) - before if not f.startswith("outputs/")} == set()
    assert len(list(start.rglob("config.yaml"))) == len(list(start.rglob("updates.jsonl"))) == 1
    assert {r["rank"] for r in rows(run / "batches.jsonl")} == {0, 1}
