"""Follows the rows of one run and hands them to a tracker, from a thread of the parent process.

A thread, because a signal never interrupts it: every row is handed over once, also when the run is broken off; and because
a slow tracker then keeps nobody from noticing that a rank has died. A tracker that fails does not fail the run: it is told
in one line, and the rows are in the run's folder all the same.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from runner.errors import TrackerError
from runner.follow import CHUNK, Tail
from runner.plan import Plan
from runner.rundir import RunFolder
from runner.tracker.check import is_off
from runner.tracker.local import Local
from runner.tracker.point import Point, Tracker, point_of

INTERVAL = 0.5  # seconds between two looks at the files
PATIENCE = 2.0  # seconds that the last rows may take before the user is told what is waited for


def open_tracker(plan: Plan, folder: RunFolder) -> Tracker:
    """The tracker that the plan asks for, started. Raises TrackerError if it cannot be."""
    chosen = plan.config.tracker
    try:
        if chosen.name == "local" or is_off(plan):
            return Local()
        if chosen.name == "wandb":
            from runner.tracker.wandb import Wandb

            return Wandb(plan, chosen, folder)
        if chosen.name == "tensorboard":
            from runner.tracker.tensorboard import TensorBoard

            return TensorBoard(plan, folder)
        from runner.tracker.mlflow import Mlflow

        return Mlflow(plan, chosen, folder)
    except Exception as error:  # of a package that is not ours: anything
        first = (str(error).splitlines() or [""])[0]
        raise TrackerError(f"tracker={chosen.name} cannot be started: {type(error).__name__}: {first}") from error


class Feed:
    """Feeds one tracker from one run's folder, from its making to `finish`."""

    def __init__(self, folder: RunFolder, tracker: Tracker):
        self._folder, self._tracker = folder, tracker
        arithmetic = folder.read_plan().arithmetic
        self._per_window = arithmetic.processes * arithmetic.accum
        files = {"batch": folder.batches, "update": folder.updates, "eval": folder.evals}
        self._tails = {kind: Tail(path) for kind, path in files.items()}
        self._over = threading.Event()
        self._state = "failed"
        self._thread = threading.Thread(target=self._follow, name="samestep-tracker", daemon=True)
        if not isinstance(tracker, Local):
            self._thread.start()

    def finish(self) -> None:
        """The run has ended and its status is written: hand over what is left, and close the tracker."""
        if not self._thread.is_alive():
            return
        self._state = self._folder.read_status()["state"]
        self._over.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            print("the tracker is taking the last rows ...", file=sys.stderr)
            self._thread.join()

    def _follow(self) -> None:
        planned = False
        try:
            while True:
                over = self._over.wait(INTERVAL)  # before the look, so that the last look sees everything
                while points := self._look():
                    if not planned:
                        self._tracker.plan(self._folder.read_plan())
                        planned = True
                    self._tracker.log(points)
                if over:
                    self._tracker.close(self._state)
                    return
        except Exception as error:  # of a package that is not ours: anything
            where = f"the run and its rows in {self._folder.path} are not affected"
            print(
                f"the tracker has failed and gets no more rows: {type(error).__name__}: {error}; {where}",
                file=sys.stderr,
            )

    def _look(self) -> list[Point]:
        """New points of all files, micro-batches first; empty when there are none."""
        found: list[tuple[str, dict[str, Any]]] = []
        for kind, tail in self._tails.items():
            found += [(kind, row) for row in tail.rows(CHUNK)]
        return [point_of(kind, row, self._per_window) for kind, row in found]
