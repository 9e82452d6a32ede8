"""Ctrl-C at awkward moments: while a run starts, and more than once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import Command, Done, marked, rows, started, status, tiny, until, workshop

pytestmark = pytest.mark.ranks

SECONDS = 15.0
ENDLESS = [*tiny(updates=100_000), "data.workers=2", "task.pause=0.05"]


def _loads_torch(command: Command) -> bool:
    """Whether one of a command's processes has mapped torch's libraries."""
    for pid in marked(command.mark):
        with suppress(OSError):
            if "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                return True
    return False


# how far a command has come, told from outside
MOMENTS: dict[str, Callable[[Command], bool]] = {
    "its fork server loads torch": _loads_torch,
    "it has made its folder": lambda c: any(c.folder.rglob("status.json")),
    "its ranks have begun": lambda c: any(c.folder.rglob("rank-1.log")),
}


def _ended_well(command: Command, word: str) -> Done:
    """The end of an interrupted command, which says no more than that, in a folder that says so too."""
    done = command.wait(SECONDS)
    until(lambda: not marked(command.mark), SECONDS, "nothing is left")
    said = command.said()[1]  # by now: what it started may outlive it by a moment
    assert "Traceback" not in said, said
    for run in done.runs():
        found = status(run)
        assert found["state"] == "interrupted", found
        assert word in found["reason"]
    return done


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_a_run_starts_is_no_crash(moment: str, tmp_path: Path) -> None:
    with started(workshop(tmp_path / "start"), *ENDLESS) as command:
        until(lambda: MOMENTS[moment](command), 60, moment, every=0.01)
        os.killpg(command.process.pid, signal.SIGINT)
        _ended_well(command, "SIGINT").expect(130)


def test_sigterm_as_soon_as_there_is_a_folder_is_recorded_in_it(tmp_path: Path) -> None:
    with started(workshop(tmp_path / "start"), *ENDLESS) as command:
        until(lambda: MOMENTS["it has made its folder"](command), 60, "it has made its folder", every=0.01)
        os.kill(command.process.pid, signal.SIGTERM)
        done = _ended_well(command, "SIGTERM").expect(143)
    assert len(done.runs()) == 1


def test_an_impatient_user_does_not_break_the_end_of_a_run(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    with started(start, *ENDLESS) as command:
        until(lambda: any(map(rows, start.rglob("updates.jsonl"))), 60, "it trains")
        for _ in range(3):
            os.killpg(command.process.pid, signal.SIGINT)
            time.sleep(0.02)
        done = _ended_well(command, "SIGINT")
    assert done.code in (130, -signal.SIGINT), "a shell calls both 130"
    assert len(done.runs()) == 1
