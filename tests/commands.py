"""Commands as a user gives them: `python -m runner ...` in a folder of its own, with a deadline, watched through /proc.

Every command carries a mark in its environment, which all its descendants inherit and none can lose, so that
whatever it leaves behind is found even after its parent is gone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
MARK = "SAMESTEP_TEST_MARK"
DEADLINE = 90.0  # seconds for one command; a quiet machine needs 3
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    def runs(self) -> list[Path]:
        """The run folders below the folder that the command was started in, in the order in which they were made."""
        found = [f.parent for f in self.folder.rglob("status.json")]
        return sorted(found, key=lambda f: json.loads((f / "status.json").read_text())["started"])

    def run(self) -> Path:
        """The run folder, where there is exactly one."""
        (one,) = self.runs()
        return one

    def lines(self) -> list[str]:
        """What it said on the error channel, without empty lines."""
        return [line for line in self.err.splitlines() if line.strip()]

    def expect(self, code: int = 0) -> Done:
        """This command, if it ended with `code`; fails with all that it said otherwise."""
        assert self.code == code, f"exit code {self.code}, not {code}\n--- out\n{self.out}\n--- err\n{self.err}"
        return self


class Command:
    """A command that runs, in a session and a process group of its own."""

    def __init__(self, folder: Path, argv: list[str], path: list[Path], variables: dict[str, str]):
        self.folder, self.mark = folder, uuid.uuid4().hex
        environment = {k: v for k, v in os.environ.items() if k in _KEPT}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(map(str, path)), MARK: self.mark}
        environment |= {"COLUMNS": "100"} | variables
        self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - open as long as the command
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._streams[0],
            stderr=self._streams[1],
            start_new_session=True,  # a group of its own, as a terminal gives to a command
        )

    def said(self) -> tuple[str, str]:
        """What it has written so far to its two channels."""
        texts = [os.pread(f.fileno(), 1 << 24, 0).decode(errors="replace") for f in self._streams]
        return texts[0], texts[1]

    def wait(self, deadline: float = DEADLINE) -> Done:
        """Its end. Fails, with what it said, if it has not ended after `deadline` seconds."""
        try:
            code = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {deadline} s\n{self.said()[0]}\n{self.said()[1]}") from None
        return Done(code, *self.said(), self.folder)

    def kill(self) -> None:
        """End it and all that descends from it, at once; returns when nothing of it is left."""
        deadline = time.monotonic() + 10
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait(10)


@contextmanager
def started(
    folder: Path, *arguments: str, path: list[Path] | None = None, program: list[str] | None = None, **variables: str
) -> Iterator[Command]:
    """`python -m runner` with `arguments`, started in `folder`; nothing of it is left afterwards.

    `path` is what stands on the import path (the project), `program` what Python is given instead of `-m runner`.
    """
    argv = [sys.executable, *(program or ["-m", "runner"]), *arguments]
    command = Command(folder, argv, [PROJECT] if path is None else path, variables)
    try:
        yield command
    finally:
        command.kill()


def runner(folder: Path, *arguments: str, **options: Any) -> Done:
    """Start a command and wait for its end."""
    with started(folder, *arguments, **options) as command:
        return command.wait()


def marked(mark: str) -> set[int]:
    """All living processes that descend from the command with that mark, itself included."""
    wanted, found = f"{MARK}={mark}".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def listening(pids: set[int]) -> set[int]:
    """The TCP ports that these processes listen on."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    target = str(link.readlink())
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    return {port for port, inode in _listeners() if inode in inodes}


def open_ports() -> set[int]:
    """The TCP ports that anything on this machine listens on."""
    return {port for port, _ in _listeners()}


def _listeners() -> Iterator[tuple[int, str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # LISTEN
                    yield int(fields[1].rpartition(":")[2], 16), fields[9]


def until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.1) -> Any:
    """The first true value of `condition`. Fails after `seconds`, saying what was waited for."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(every)
    return value


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, read without the project's own code. A cut last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def status(run: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run / "status.json").read_text())
    return value


def facts(run: Path) -> dict[str, Any]:
    """Everything about a run that its seed decides."""
    timing = {"seconds", "peak_memory"}
    tables = {
        name: sorted(
            tuple(sorted((k, repr(v)) for k, v in row.items() if k not in timing))
            for row in rows(run / f"{name}.jsonl")
        )
        for name in ("batches", "updates", "evals")
    }
    return {**tables, "model": _weights(run)}


def _weights(run: Path) -> dict[str, list[Any]]:
    import torch

    return {k: v.tolist() for k, v in torch.load(run / "model.pt").items()}


def table(done: Done, jobs: int) -> list[str]:
    """The rows of the table at the end of a sweep."""
    lines = done.out.splitlines()
    head = max(i for i, line in enumerate(lines) if re.match(r"\s*job\s+status\b", line))
    return lines[head + 1 : head + 1 + jobs]


def files(folder: Path) -> set[str]:
    """All files below a folder, by their path in it."""
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def workshop(folder: Path) -> Path:
    """A folder to start commands in, which holds the tests' tasks and nothing else."""
    folder.mkdir()
    shutil.copy(PROJECT / "tests" / "mytask.py", folder)
    return folder


def tiny(task: str = "MyTask", processes: int = 2, updates: int = 3) -> list[str]:
    """The arguments of a run that is little more than its start and its end."""
    hardware = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    return ["task=custom", f"task._target_=mytask.{task}", hardware, "batch.size=8", f"budget.updates={updates}"]
