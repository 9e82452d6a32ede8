"""A run's folder: what it is called, what lies in it, and how its files are written.

Files appear whole or not at all (written beside their place, then renamed); a folder belongs to exactly one run.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import RecordError
from runner.plan import Plan

ROOM = 1024  # characters that a status file always has, so that on a full disk a later one fits into its place


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        return self.path / "overrides.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def batches(self) -> Path:
        return self.path / "batches.jsonl"

    @property
    def updates(self) -> Path:
        return self.path / "updates.jsonl"

    @property
    def evals(self) -> Path:
        return self.path / "evals.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model.pt"

    @property
    def link(self) -> Path:
        """Of nodes on one machine, joined by a link."""
        return self.path / "link.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, rank: int) -> Path:
        """What a rank printed."""
        return self.logs / f"rank-{rank}.log"

    def read_plan(self) -> Plan:
        return Plan.from_json(self.plan.read_text())

    def read_status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.status.read_text())
        return status

    def write_status(self, state: str, **facts: Any) -> None:
        """`running`, `finished`, `failed` or `interrupted`, with what is known of the reason."""
        known = self.read_status() if self.status.exists() and self.status.stat().st_size else {}
        facts = {k: v for k, v in facts.items() if v is not None}
        text = json.dumps({**known, "state": state, **facts, "time": time.time()}, indent=2).ljust(ROOM) + "\n"
        try:
            write_text(self.status, text)
        except RecordError:  # a full disk: there is room in the old file for the last word
            with self.status.open("r+") as file:
                file.write(text)
                file.truncate()


def create(wanted: Path, plan: Plan, config_yaml: str, overrides_yaml: str, **facts: Any) -> RunFolder:
    """A new folder for one run at `wanted`, or right beside it where another run was faster. `facts` go into its status.

    The folder is claimed by creating its status file, which only one process can do. Raises RecordError.
    """
    folder = RunFolder(wanted)
    try:
        while not _claim(folder):
            folder = RunFolder(wanted.with_name(f"{wanted.name}-{secrets.token_hex(2)}"))
    except OSError as error:
        raise RecordError(f"cannot make the run's folder {folder.path}: {error.strerror}") from error
    try:
        folder.write_status("running", pid=os.getpid(), host=os.uname().nodename, started=time.time(), **facts)
        folder.logs.mkdir()
        write_text(folder.plan, plan.to_json() + "\n")
        write_text(folder.config, config_yaml)
        write_text(folder.overrides, overrides_yaml)
    except (OSError, RecordError) as error:
        what = (
            f"cannot make the run's folder {folder.path}: {error.strerror}"
            if isinstance(error, OSError)
            else str(error)
        )
        with suppress(OSError, RecordError):  # nobody else will say that it does not run
            folder.write_status("failed", reason=what, finished=time.time())
        raise RecordError(what) from error
    return folder


def _claim(folder: RunFolder) -> bool:
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(folder.status, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def hindrance(folder: Path) -> str | None:
    """Why nothing could be written into a folder, which may not exist yet; None where it could. It is tried, in the
    folder that is there: permissions alone do not tell."""
    whole = folder.absolute()
    try:
        with suppress(FileNotFoundError):
            whole.stat()  # says that a name is too long, or a part of the path a file
        there = next(f for f in (whole, *whole.parents) if f.exists())
        Path(tempfile.mkdtemp(prefix=".samestep-", dir=there)).rmdir()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def write_text(path: Path, text: str) -> None:
    """Replace a file by `text`, whole or not at all. Raises RecordError."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by `content`, whole or not at all; what is no file (/dev/null, a pipe) is written to and stays what it is.
    Raises RecordError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            beside.write_bytes(content)
            beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RecordError(f"cannot write {path}: {error.strerror}") from error
    except BaseException:  # Ctrl-C, say
        beside.unlink(missing_ok=True)
        raise
