"""Run folders for comparison: what is wrong with them, their rows as arrays.

Whatever cannot be compared becomes a `LeftOut` with its reason; one bad folder never keeps the others from it.
"""

from __future__ import annotations

import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from runner import records
from runner.compare.columns import Columns, read_columns
from runner.counts import counted
from runner.errors import RecordError
from runner.plan import Plan, experiment_of, flat, setup_of
from runner.rundir import RunFolder

UPDATE_COLUMNS = (
    "update", "loss", "weight", "lr", "grad_norm", "seconds", "items", "digest", "collectives", "bytes",
    "skipped", "peak_memory",
)  # fmt: skip
BATCH_COLUMNS = ("update", "micro", "rank", "loss", "weight", "seconds")
ENDED = ("finished", "failed", "interrupted")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A path that takes no part, and why."""

    path: Path
    reason: str


@dataclass(eq=False)
class Run:
    """One run. `updates` are in order and each there once; `notes` say what its log looked like."""

    folder: RunFolder
    plan: Plan
    status: dict[str, Any]
    updates: Columns
    evals: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)  # updates before which the run began anew
    name: str = ""
    pool: ThreadPoolExecutor | None = None

    @property
    def count(self) -> int:
        return len(self.updates["update"])

    @property
    def state(self) -> str:
        return str(self.status.get("state"))

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """What is trained, with the data that were found, in dotted keys."""
        found = flat(experiment_of(self.plan.config, self.plan.arithmetic))
        return {**found, "data": self.plan.data, "items": self.plan.arithmetic.items}

    @cached_property
    def setup(self) -> dict[str, Any]:
        return flat(setup_of(self.plan.config, self.plan.arithmetic))

    @cached_property
    def batches(self) -> Columns:
        """Rows of micro-batches, by update and place in the window; those of updates without a row are left out."""
        table = read_columns(self.folder.batches, BATCH_COLUMNS, self.pool)
        rows = table.columns
        key = rows["update"] * 2.0**20 + rows["micro"]
        if (np.diff(key) <= 0).any():  # several ranks wrote, or an update was repeated: the last row counts
            order = np.argsort(key, kind="stable")
            ordered = key[order]
            last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.empty(0, bool)
            rows = {k: v[order][last] for k, v in rows.items()}
        last_update = self.updates["update"][-1] if self.count else 0
        keep = rows["update"] <= last_update
        return rows if keep.all() else {k: v[keep] for k, v in rows.items()}

    @cached_property
    def signature(self) -> int:
        """Equal for runs whose columns that must be equal are, to the bit. Most pairs need no closer look than this."""
        rows = self.updates
        exact = [rows[n] for n in ("update", "digest", "items", "skipped", "weight", "lr")]
        finite = [np.isfinite(rows[n]) for n in ("loss", "grad_norm")]
        return hash(b"".join(column.tobytes() for column in (*exact, *finite)))

    @cached_property
    def places(self) -> tuple[int, Any]:
        """A signature of which micro-batches there are, and the row of its update for each of them."""
        rows = self.batches
        at = np.searchsorted(self.updates["update"], rows["update"])
        return hash(rows["update"].tobytes() + rows["micro"].tobytes()), np.minimum(at, max(0, self.count - 1))

    @cached_property
    def weights(self) -> tuple[tuple[str, int], ...] | None:
        """Names and checksums of the final weights' storages; None where there are none to read."""
        try:
            with zipfile.ZipFile(self.folder.model) as archive:
                entries = [(i.filename.partition("/")[2], i.CRC) for i in archive.infolist()]
        except (OSError, zipfile.BadZipFile):
            return None
        return tuple(e for e in entries if e[0].startswith("data/"))


def read_run(path: Path, pool: ThreadPoolExecutor | None = None) -> Run | LeftOut:
    """A run, or why it cannot be compared."""
    folder = RunFolder(path)
    try:
        for file in (folder.status, folder.plan, folder.updates, folder.batches, folder.evals):
            if file.exists() and not file.is_file():
                return LeftOut(path, f"{file.name} is no file")
        status = _status(folder)
        plan = _plan(folder)
        if status["state"] == "running":
            rows = sum(1 for _ in folder.updates.open("rb")) if folder.updates.exists() else 0
            return LeftOut(path, f"still running, at update {rows} of {plan.arithmetic.updates or '?'}")
        return _rows(folder, plan, status, pool)
    except RecordError as error:
        return LeftOut(path, str(error).removeprefix(f"{path}/"))
    except OSError as error:
        return LeftOut(path, f"cannot be read: {error.strerror or error}")


def _rows(folder: RunFolder, plan: Plan, status: dict[str, Any], pool: ThreadPoolExecutor | None) -> Run | LeftOut:
    if not folder.updates.exists():
        return LeftOut(folder.path, f"has no updates.jsonl ({_told(status)})")
    table = read_columns(folder.updates, UPDATE_COLUMNS, pool)
    if not table.lines:
        return LeftOut(folder.path, f"not a single update was recorded ({_told(status)})")
    evals = list(records.read(folder.evals)) if folder.evals.exists() else []
    if any("update" not in row for row in evals):
        return LeftOut(folder.path, "evals.jsonl: a row has no update; is this a file of another version?")
    run = Run(folder, plan, status, table.columns, _last_of_each(evals), pool=pool)
    if table.cut:
        run.notes.append("the last line of updates.jsonl is cut")
    _put_in_order(run)
    if run.state != "finished":
        run.notes.append(_told(status))
    assert run.batches is not None  # read here, where several runs are read at a time
    return run


def _put_in_order(run: Run) -> None:
    """A run that was resumed may have repeated updates: their last rows count."""
    numbers = run.updates["update"]
    steps = np.diff(numbers)
    if (steps == 1).all() and numbers[0] == 1:
        return
    back = np.flatnonzero(steps <= 0)
    run.resumed = [int(n) for n in numbers[back + 1]]
    _, last = np.unique(numbers[::-1], return_index=True)
    keep = len(numbers) - 1 - last
    run.updates = {k: v[keep] for k, v in run.updates.items()}
    for update in run.resumed:
        run.notes.append(f"resumed before update {update}")
    numbers = run.updates["update"]
    missing = np.setdiff1d(np.arange(1, int(numbers[-1]) + 1), numbers)
    if len(missing):
        run.notes.append(f"{counted(len(missing), 'update')} without a row, the first at {missing[0]}")


def _last_of_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted({row["update"]: row for row in rows}.values(), key=lambda row: row["update"])


def _status(folder: RunFolder) -> dict[str, Any]:
    """The status; a run whose process is gone is not running, whatever its file says."""
    if not folder.status.exists():
        raise RecordError("has no status.json: half a copy, or a folder that something else wrote")
    try:
        status = folder.read_status()
        state = status["state"]
    except (ValueError, KeyError, TypeError):
        raise RecordError("status.json is not a run's status") from None
    if state not in (*ENDED, "running"):
        raise RecordError(f"status.json: the state is {state!r}; known are {', '.join(ENDED)} and running")
    if state == "running" and status.get("host") == os.uname().nodename and not _alive(status.get("pid")):
        return {**status, "state": "interrupted", "reason": "its process is gone without a word"}
    return dict(status)


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _plan(folder: RunFolder) -> Plan:
    if not folder.plan.exists():
        raise RecordError("has no plan.json: half a copy, or a folder that something else wrote")
    try:
        return folder.read_plan()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise RecordError(
            f"plan.json is no plan of this version: {where + ': ' if where else ''}{first['msg']}"
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise RecordError("plan.json is not JSON") from None


def _told(status: dict[str, Any]) -> str:
    reason = status.get("reason")
    return f"{status.get('state')}: {reason}" if reason else str(status.get("state"))


def name_all(runs: list[Run]) -> None:
    """Names as short as they can be, while all differ: the paths below the folder that they share."""
    paths = [r.folder.path.resolve() for r in runs]
    base = Path(os.path.commonpath(paths)) if len(paths) > 1 else paths[0].parent if paths else Path()
    for run, path in zip(runs, paths, strict=True):
        run.name = shown(path.relative_to(base) if path != base else path.name)


def shown(path: Path | str) -> str:
    """A path in one line: characters that would break it, or drive a terminal, are shown as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def value_text(value: Any) -> str:
    """A setting as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value)
