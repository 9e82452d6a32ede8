"""What a user sees of jobs that run at the same time in processes of their own: the parent follows their folders.

A bar for each on a terminal, a line every few seconds elsewhere; what each printed, with its number before it; what
went wrong as soon as it has.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Bars

from runner.follow import Tail
from runner.launch.progress import COLUMNS, LINE_EVERY, loss_of
from runner.sweep import Member, members


@dataclass(slots=True)
class _Seen:
    """How far a job has been told of."""

    job: Member
    rows: Tail
    log: Tail
    total: int | None = None
    bar: Any = None
    over: bool = False
    last: dict[str, Any] = field(default_factory=dict)


class Crowd:
    """Follows the jobs of one command below a sweep's folder, from a thread of its own."""

    def __init__(self, sweep: Path, command: str, console: Console):
        self._sweep, self._command, self._console = sweep, command, console
        self._seen: dict[Path, _Seen] = {}
        self._stop = threading.Event()
        self._next_line = time.monotonic() + LINE_EVERY
        self._bars = Bars(*COLUMNS, console=console, transient=True) if console.is_terminal else None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        if self._bars is not None:
            self._bars.start()
        self._thread.start()

    def finish(self) -> None:
        """Tell what is left and give the terminal back."""
        self._stop.set()
        self._thread.join()
        self._look()
        if self._bars is not None:
            self._bars.stop()

    def _follow(self) -> None:
        while not self._stop.wait(0.2 if self._bars is not None else 0.5):
            self._look()

    def _look(self) -> None:
        for job in members(self._sweep, self._command):
            if job.folder.path not in self._seen:
                self._seen[job.folder.path] = self._meet(job)
        for seen in self._seen.values():
            if not seen.over:
                self._tell(seen)
        if self._bars is None and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            for seen in self._seen.values():
                if seen.last and not seen.over:
                    self._say(seen, f"update {seen.last['update']} of {seen.total or '?'}, {loss_of(seen.last)}")

    def _meet(self, job: Member) -> _Seen:
        self._console.print(f"[bold]#{job.number}[/bold] {escape(job.name)}", highlight=False, soft_wrap=True)
        seen = _Seen(job, Tail(job.folder.updates), Tail(job.folder.log(0)))
        if self._bars is not None:
            seen.bar = self._bars.add_task(f"#{job.number}", total=None, loss="")
        return seen

    def _tell(self, seen: _Seen) -> None:
        folder = seen.job.folder
        try:
            status = folder.read_status()  # before the rows: what was written by its end is read then
        except (OSError, ValueError):
            return
        for line in seen.log.lines():
            self._say(seen, line)
        lines = seen.rows.lines()
        if lines:
            seen.last = json.loads(lines[-1])
            if seen.total is None:
                with suppress(OSError, ValueError):
                    seen.total = folder.read_plan().arithmetic.updates
            if self._bars is not None:
                self._bars.update(seen.bar, completed=seen.last["update"], total=seen.total, loss=loss_of(seen.last))
        if status["state"] != "running":
            seen.over = True
            if self._bars is not None:
                self._bars.remove_task(seen.bar)
            if status["state"] == "failed":
                print(
                    f"{status.get('trace', '')}#{seen.job.number}: {status.get('reason')}", file=sys.stderr, flush=True
                )
                self._say(seen, f"run folder: {folder.path}")

    def _say(self, seen: _Seen, text: str) -> None:
        line = f"#{seen.job.number}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
