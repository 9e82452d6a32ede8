"""The jobs of one sweep, found in its folder, whichever process ran them.

A job's status names the command that it belongs to, for a sweep's folder may hold the jobs of several.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.rundir import RunFolder

ENDING = 3.0  # seconds that a job's process may take to write its last word, once it has been told to end


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a sweep: its place in the sweep, its overrides, the folder of its run."""

    number: int
    overrides: tuple[str, ...]
    folder: RunFolder

    @property
    def name(self) -> str:
        return " ".join(self.overrides)

    def status(self) -> dict[str, Any]:
        return self.folder.read_status()

    @property
    def running(self) -> bool:
        return bool(self.status()["state"] == "running")

    @property
    def alive(self) -> bool | None:
        """Whether the process that runs it is there; None where that cannot be seen from this machine."""
        status = self.status()
        if status.get("host") != os.uname().nodename:
            return None
        return Path(f"/proc/{status['pid']}").exists() if Path("/proc/self").exists() else None


def facts(command: str, number: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """What a job's status says about its sweep."""
    return {"sweep": {"command": command, "job": number, "overrides": list(overrides)}}


def members(folder: Path, command: str) -> list[Member]:
    """The jobs of `command` below a sweep's folder, in the sweep's order."""
    found = []
    for status in _statuses(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):  # claimed a moment ago and not written yet, or foreign
            sweep = json.loads(status.read_text())["sweep"]
            if sweep["command"] == command:
                found.append(Member(sweep["job"], tuple(sweep["overrides"]), RunFolder(status.parent)))
    return sorted(found, key=lambda m: m.number)


def end(jobs: list[Member]) -> None:
    """Tell the jobs that run on this machine to end, and give them the time to say so in their status."""
    asked = [job for job in jobs if job.running and job.alive]
    for job in asked:
        with suppress(OSError):
            os.kill(job.status()["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 2 * ENDING
    while any(job.running and job.alive for job in asked) and time.monotonic() < deadline:
        time.sleep(0.05)


def settle(jobs: list[Member], reason: str) -> None:
    """Say of jobs that still claim to run, though nothing runs them any more, that they were interrupted for `reason`."""
    deadline = time.monotonic() + ENDING
    for job in jobs:
        while job.running and job.alive is not False and time.monotonic() < deadline:
            time.sleep(0.05)
        if job.running and job.alive is False:
            with suppress(OSError):
                job.folder.write_status("interrupted", reason=reason, finished=time.time())


def _statuses(folder: Path) -> Iterator[Path]:
    """The status files below a folder. Nothing is looked for inside of a run."""
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith("."):
            status = Path(entry.path, "status.json")
            if status.exists():
                yield status
            else:
                yield from _statuses(Path(entry.path))
