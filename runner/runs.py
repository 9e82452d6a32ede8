"""The jobs of one command, each from its plan to its summary; the table of all of them at the end of a sweep."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from runner.build import check_arguments, missing_module
from runner.compose.app import Job
from runner.environment import capture
from runner.errors import ConfigError, RunnerError, WorkerFailed
from runner.launch.chosen import chosen
from runner.launch.ending import Terminated, recorded
from runner.launch.hardware import check_hardware
from runner.launch.joining import common
from runner.launch.local import launch
from runner.launch.nodes import Nodes, check_meeting
from runner.launch.progress import Progress
from runner.plan import Plan
from runner.rounds import show_rounds
from runner.rundir import RunFolder, create, write_text
from runner.summary import Summary, show_run, show_sweep
from runner.tracker.check import check_tracker
from runner.tracker.feed import Feed, open_tracker


def check_runnable(plan: Plan) -> None:
    """Raises ConfigError if this machine cannot run the plan, or the task's module is nowhere to be found."""
    task = plan.config.task
    problem = missing_module("task._target_", task.target)
    if problem is not None:
        raise ConfigError([problem])
    check_arguments(task)
    check_tracker(plan)
    check_hardware(plan)
    check_meeting(plan)


class Terminal(Console):
    """Standard output, for as long as somebody reads it: a run goes on after `| head` has gone."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Runs:
    """Runs jobs one after another and remembers how they went."""

    def __init__(self, command: Sequence[str]) -> None:
        self.exit_code = 0
        self._command = command
        self._out = Terminal()
        self._folders: list[tuple[Job, RunFolder]] = []
        self._nodes: Nodes | None = None

    def run(self, job: Job) -> float | None:
        """Run one job. Its value for a sweeper is the last evaluation's loss, or training's.

        A failure is told here, and does not keep the sweep's other jobs from running.
        """
        before = len(self._folders)
        try:
            plan = chosen(job.plan)
        except RunnerError as error:  # there is no folder yet
            self.exit_code = max(self.exit_code, error.exit_code)
            self._tell(error)
            return float("nan")
        if plan is not job.plan:
            job = replace(job, plan=plan)
            self._out.print(plan.notes[-1], markup=False, highlight=False, soft_wrap=True)
        try:
            with ExitStack() as when_recorded, recorded(lambda: self._create(job)) as folder:
                nodes = self._gather(job.plan)
                write_text(folder.environment, capture(job.plan, self._command, nodes.facts if nodes else None))
                feed = Feed(folder, open_tracker(job.plan, folder))
                when_recorded.callback(feed.finish)  # the tracker is told what the status says
                progress = Progress(folder, self._out)
                nodes.launch(job.plan, folder, progress) if nodes else launch(job.plan, folder, progress)
        except RunnerError as error:
            self.exit_code = 1
            self._tell(error)
            if len(self._folders) > before:  # or its folder could not be made
                self._say_where()
            return float("nan")
        except (KeyboardInterrupt, Terminated) as ended:
            if job.sweep is None:
                self._say_where()
            if isinstance(ended, Terminated):
                raise SystemExit(128 + ended.number) from None
            raise
        summary = Summary.of(folder)
        if job.sweep is None:
            show_run(summary, self._out)
        return summary.objective

    def close(self) -> None:
        """After the last job: the table of a sweep, also of one that was broken off."""
        if self._nodes is not None:
            self._nodes.close()
        if self._folders and self._folders[0][0].sweep is not None:
            jobs = [(job.overrides, Summary.of(folder)) for job, folder in self._folders]
            show_sweep(jobs, self._out)
            show_rounds(jobs, self._out)
            self._compare(self._folders[0][0].sweep)
        self._against_references()

    def _against_references(self) -> None:
        """The verdicts on jobs against the references of their recipes, which count for the exit code; those among a
        sweep's own jobs do not, which may differ on purpose."""
        by_recipe: dict[str, list[RunFolder]] = {}
        for job, folder in self._folders:
            for name in (o.partition("=")[2] for o in job.overrides if o.startswith("recipe=")):
                by_recipe.setdefault(name, []).append(folder)
        if not by_recipe:
            return
        from runner.recipes import show_against_reference

        codes = {show_against_reference(name, folders, self._out) for name, folders in by_recipe.items()}
        if not self.exit_code:
            self.exit_code = 1 if 1 in codes else max(codes)

    def _compare(self, sweep: Path) -> None:
        """The verdicts on a sweep's jobs, and their page. Whatever hinders it must not hide how the jobs went."""
        if len(self._folders) < 2:
            return
        from runner.compare.report import write
        from runner.compare.session import compare
        from runner.compare.table import show_verdicts

        try:
            comparison = compare([str(folder.path) for _, folder in self._folders])
            show_verdicts(comparison, self._out)
            write(comparison, sweep / "report.html")
        except (RunnerError, OSError) as error:
            self._out.print(f"not compared: {error}", markup=False, highlight=False, soft_wrap=True)
            return
        self._out.print(f"report: {sweep / 'report.html'}", markup=False, highlight=False, soft_wrap=True)

    def _gather(self, plan: Plan) -> Nodes | None:
        """The other machines, once all that the plan asks for have joined; None where there are none."""
        if plan.config.hardware.nodes == 1 or plan.config.link.chosen:  # with a link all are on this one
            return None
        if self._nodes is None:
            assert plan.config.rendezvous is not None, "checked before"
            self._nodes = Nodes(plan.config.rendezvous, common(self._command[1:]), self._out)
        self._nodes.gather(plan)
        return self._nodes

    def _create(self, job: Job) -> RunFolder:
        folder = create(job.folder, job.plan, job.config_yaml, job.overrides_yaml)
        self._folders.append((job, folder))
        if job.sweep is not None:
            self._out.print(f"[bold]#{len(self._folders) - 1}[/bold] {' '.join(job.overrides)}", highlight=False)
        return folder

    def _say_where(self) -> None:
        self._out.print(f"run folder: {self._folders[-1][1].path}", highlight=False, soft_wrap=True)

    @staticmethod
    def _tell(error: RunnerError) -> None:
        if isinstance(error, WorkerFailed) and error.trace:
            print(error.trace, file=sys.stderr, end="")
        print(error, file=sys.stderr)
