"""One job from its plan to the end of its run; also where a sweep's launcher has put it into a process of its own."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runner.compose.entry import Asked, Failed, Job
from runner.environment import capture
from runner.errors import RunnerError
from runner.launch.child import ORPHANED
from runner.launch.chosen import chosen
from runner.launch.ending import Terminated, recorded
from runner.launch.local import launch
from runner.launch.progress import Silent
from runner.plan import Plan
from runner.rundir import RunFolder, create, write_text
from runner.summary import Summary
from runner.sweep import facts
from runner.tracker.feed import Feed, open_tracker


def make_folder(job: Job, command: str) -> RunFolder:
    """The folder of a job's run. `command` is what tells the jobs of one command from those of others."""
    about = facts(command, job.number, job.overrides) if job.sweep is not None else {}
    return create(job.folder, job.plan, job.config_yaml, job.overrides_yaml, **about)


def perform(
    plan: Plan,
    typed: Sequence[str],
    make: Callable[[], RunFolder],
    start: Callable[[RunFolder], object],
    nodes: Callable[[], dict[int, dict[str, Any]] | None] = lambda: None,
) -> RunFolder:
    """Run a plan, from the making of its folder to the last word of its status. Raises RunnerError, or what a signal became.

    `typed` is the command line that asked for it; `nodes` waits for other machines and says what they are; `start` runs
    the ranks to their end.
    """
    with ExitStack() as when_recorded, recorded(make) as folder:
        write_text(folder.environment, capture(plan, typed, nodes()))
        feed = Feed(folder, open_tracker(plan, folder))
        when_recorded.callback(feed.finish)  # the tracker is told what the status says
        start(folder)
    return folder


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Runs a job in a process that a launcher made: silently, for the command follows the folder. It ends with the
    command, which is the process `pid` of `host`."""

    typed: tuple[str, ...]
    command: str
    host: str
    pid: int

    def __call__(self, job: Job) -> float | Failed | None:
        """A job's value for a sweeper. Why it failed is given back, too, for there may be no folder to say it."""
        over, gone = threading.Event(), threading.Event()
        threading.Thread(target=self._follow_command, args=(over, gone), daemon=True).start()
        try:
            plan = chosen(job.plan)
        except RunnerError as error:
            with suppress(RunnerError, OSError):
                make_folder(job, self.command).write_status("failed", reason=str(error), finished=time.time())
            return Failed(str(error))
        try:
            make = partial(make_folder, replace(job, plan=plan), self.command)
            folder = perform(plan, self.typed, make, lambda f: launch(plan, f, Silent()))
        except RunnerError as error:
            return Failed(str(error))
        except Terminated as ended:
            if gone.is_set():
                os._exit(ORPHANED)  # nobody is there to take this process's next job away
            raise SystemExit(128 + ended.number) from None
        finally:
            over.set()
        return Summary.of(folder).objective

    def together(self, jobs: Sequence[Job]) -> list[float | None]:
        raise NotImplementedError("jobs that are submitted together are collected by the command itself")

    def came_back(self, jobs: Sequence[Asked]) -> None:
        raise NotImplementedError("launchers give jobs back to the command itself")

    def _follow_command(self, over: threading.Event, gone: threading.Event) -> None:
        """End this job when the command is gone, on its own machine; launchers that span several see to that themselves."""
        if self.host != os.uname().nodename or not hasattr(os, "pidfd_open"):
            return
        try:
            command = os.pidfd_open(self.pid)
        except ProcessLookupError:
            command = None
        watched = select.poll()
        if command is not None:
            watched.register(command, select.POLLIN)
        while not over.is_set():
            if command is None or watched.poll(500):
                gone.set()
                os.kill(os.getpid(), signal.SIGTERM)
                break
        if command is not None:
            os.close(command)
