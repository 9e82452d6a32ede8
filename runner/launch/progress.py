"""What a user sees while a run goes on: a bar on a terminal, a line every few seconds elsewhere.

Ranks write rows and logs; this process follows the files. It owns the terminal alone.
"""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from runner.follow import Tail
from runner.rundir import RunFolder

LINE_EVERY = 5.0  # seconds between two lines where there is no terminal
_HARMLESS = "The hostname of the client socket cannot be retrieved"  # torch looks for names, and a node here has none
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[loss]}"),
    TimeRemainingColumn(),
)


class Silent:
    """Shows nothing: somebody else follows the run's folder."""

    interval = 0.5

    def show(self) -> None:
        pass

    def finish(self) -> None:
        pass


def loss_of(row: dict[str, Any]) -> str:
    """The loss of an update's row, as it is shown."""
    return f"loss {row['loss']:.4f}" if isinstance(row["loss"], float) else f"loss {row['loss']}"


class Progress:
    """Follows one run's folder."""

    def __init__(self, folder: RunFolder, console: Console):
        self.interval = 0.1 if console.is_terminal else 0.5
        self._folder, self._console = folder, console
        self._rows, self._log = Tail(folder.updates), Tail(folder.log(0))
        self._total: int | None = folder.read_plan().arithmetic.updates
        self._next_line = time.monotonic() + LINE_EVERY
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(*COLUMNS, console=console, transient=True)
            self._task = self._bar.add_task("training", total=self._total, loss="")
            self._bar.start()

    def show(self) -> None:
        """Bring the terminal up to date with the files."""
        for line in self._log.lines():
            if _HARMLESS in line:
                continue
            self._console.print(line, markup=False, highlight=False)
        lines = self._rows.lines()
        if not lines:
            return
        row = json.loads(lines[-1])
        if self._total is None:
            self._total = self._folder.read_plan().arithmetic.updates
        loss = loss_of(row)
        if self._bar is not None:
            self._bar.update(self._task, completed=row["update"], total=self._total, loss=loss)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self._console.print(f"update {row['update']} of {self._total or '?'}, {loss}", highlight=False)

    def finish(self) -> None:
        """The run is over: show what is left and give the terminal back."""
        self.show()
        if self._bar is not None:
            self._bar.stop()
