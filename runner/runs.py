"""The jobs of one command, each from its plan to its summary; the table of all of them at the end of a sweep."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from runner.batch import Batch, check_launch
from runner.build import check_targets
from runner.compose.entry import Asked, Job
from runner.compose.sweeps import best_of
from runner.errors import RunnerError, WorkerFailed, check_all
from runner.job import Elsewhere, make_folder, perform
from runner.launch.chosen import chosen
from runner.launch.crowd import Crowd
from runner.launch.ending import Terminated
from runner.launch.hardware import check_hardware
from runner.launch.joining import common
from runner.launch.local import launch
from runner.launch.nodes import Nodes, check_meeting
from runner.launch.progress import Progress, Silent
from runner.plan import Plan
from runner.rounds import show_rounds
from runner.rundir import RunFolder
from runner.summary import Row, Summary, show_run, show_sweep
from runner.sweep import Member, end, members, settle
from runner.tracker.check import check_tracker


def check_runnable(plan: Plan) -> None:
    """Raises ConfigError with everything that keeps this machine from running the plan."""
    config = plan.config
    if config.launch.name == "slurm":
        machine: list[Callable[[], object]] = [check_launch]  # those that it will run on are others
    else:
        machine = [lambda: check_hardware(plan), lambda: check_meeting(plan)]
    check_all(lambda: check_targets(config), lambda: check_tracker(plan), *machine)


class Runs:
    """Runs jobs one after another and remembers how they went; or follows them, where they run elsewhere."""

    def __init__(self, typed: Sequence[str]) -> None:
        self.exit_code = 0
        self._typed = typed
        self._command = uuid.uuid4().hex
        self._out = Console()
        self._sweep: Path | None = None
        self._crowd: Crowd | None = None
        self._batch: Batch | None = None
        self._nodes: Nodes | None = None
        self._members: list[Member] = []
        self._asked: dict[int, Asked] = {}  # jobs that are not, or may not be, among them
        self._broken_off = False

    def __reduce__(self) -> Any:
        return Elsewhere, (tuple(self._typed), self._command, os.uname().nodename, os.getpid())

    def sweeping(self, folder: Path, apart: bool) -> None:
        """A sweep is about to start in `folder`; `apart`: its jobs will run in processes of their own."""
        self._sweep = folder
        if apart:
            self._crowd = Crowd(folder, self._command, self._out)
            self._crowd.start()

    def __call__(self, job: Job) -> float | None:
        """Run one job. Its value for a sweeper is the last evaluation's loss, or training's; None if it failed.

        A failure is told here, and does not keep the sweep's other jobs from running.
        """
        if job.plan.config.launch.name == "slurm":
            return self.together([job])[0]
        before = len(self._members)
        try:
            plan = chosen(job.plan)
        except RunnerError as error:  # there is no folder yet
            self.exit_code = max(self.exit_code, error.exit_code)
            self._lost(job, error)
            return None
        if plan is not job.plan:
            job = replace(job, plan=plan)
            self._out.print(plan.notes[-1], markup=False, highlight=False, soft_wrap=True)
        make = partial(self._create, job)
        try:
            folder = perform(
                job.plan, self._typed, make, partial(self._start, job.plan), partial(self._gather, job.plan)
            )
        except RunnerError as error:
            self.exit_code = 1
            if len(self._members) == before:  # its folder could not be made
                self._lost(job, error)
                return None
            self._tell(error)
            self._say_where()
            return None
        except (KeyboardInterrupt, Terminated) as ended:
            if job.sweep is None:
                self._say_where()
            if isinstance(ended, Terminated):
                raise SystemExit(128 + ended.number) from None
            raise
        return self._show(folder)

    def together(self, jobs: Sequence[Job]) -> list[float | None]:
        """Run jobs as Slurm's, side by side. Their values, as of single ones."""
        folders: dict[int, RunFolder] = {}
        for i, job in enumerate(jobs):
            try:
                folders[i] = self._create(job)
            except RunnerError as error:
                self.exit_code = 1
                self._lost(job, error)
        values: list[float | None] = [None] * len(jobs)
        if folders:
            for i, value in zip(folders, self._submitted(list(folders.values()), jobs[0].sweep), strict=True):
                values[i] = value
        return values

    def _submitted(self, folders: list[RunFolder], sweep: Path | None) -> list[float | None]:
        """Have Slurm run what is in these folders, to the end. The values of the jobs."""
        place = (sweep / ".slurm") if sweep else folders[0].path / "slurm"
        self._batch = Batch(folders, self._typed, place, self._out)
        try:
            self._batch.submit()
            self._batch.wait(Silent() if self._crowd else Progress(folders[0], self._out))
        except RunnerError as error:
            self.exit_code = 1
            for folder in folders:
                if folder.read_status()["state"] == "running":
                    folder.write_status("failed", reason=str(error), finished=time.time())
            if self._crowd is None:
                self._tell(error)
                self._say_where()
            return [None] * len(folders)
        except BaseException:
            self._say_where()
            raise
        return [self._outcome(folder) for folder in folders]

    def end(self) -> None:
        """Ask jobs that run elsewhere to end, before whoever started them does away with their processes."""
        self._broken_off = True
        if self._batch is not None:
            self._batch.cancel()
        elif self._crowd is not None and self._sweep is not None:
            end(members(self._sweep, self._command))

    def came_back(self, jobs: Sequence[Asked]) -> None:
        """What a launcher knows of jobs that it has run elsewhere, or has not."""
        if not self._broken_off:  # else nobody expects anything of those that were not started
            self._asked.update((job.number, job) for job in jobs)

    def close(self) -> None:
        """After the last job: the table of a sweep, also of one that was broken off."""
        if self._nodes is not None:
            self._nodes.close()
        if self._crowd is not None and self._sweep is not None:
            end(members(self._sweep, self._command))  # which go on where a launcher gave up
            settle(members(self._sweep, self._command), "the process that ran it is gone")
            self._crowd.finish()
            self._members = members(self._sweep, self._command)
        if self._sweep is not None and (rows := self._rows()):
            if any(row.state != "finished" for row in rows):
                self.exit_code = self.exit_code or 1
            jobs = [(row.overrides, row.summary) for row in rows if row.summary]
            show_sweep(rows, self._sweep, self._out)
            show_rounds(jobs, self._out)
            if best := best_of(self._sweep):
                self._out.print(best, markup=False, highlight=False, soft_wrap=True)
            self._compare(self._sweep, [summary.folder for _, summary in jobs])
        self._against_references()

    def _rows(self) -> list[Row]:
        """All jobs of the sweep, in its order: those that have a folder, and those of which nothing else is left than that
        they were asked for."""
        rows = {member.number: Row.of(member.overrides, member.folder) for member in self._members}
        for number, job in self._asked.items():
            row = rows.get(number)
            if row is None:
                rows[number] = Row(job.overrides, "failed", job.reason or "nothing was heard of it")
                if self._crowd is not None:
                    print(f"#{number}: {rows[number].reason}", file=sys.stderr)
            elif row.state == "running" and job.reason is not None:  # its folder could not be written to any more
                rows[number] = replace(row, state="failed", reason=job.reason)
        return [rows[number] for number in sorted(rows)]

    def _against_references(self) -> None:
        """The verdicts on jobs against the references of their recipes, which count for the exit code; those among a
        sweep's own jobs do not, which may differ on purpose."""
        by_recipe: dict[str, list[RunFolder]] = {}
        for member in self._members:
            if not member.folder.plan.exists():
                continue
            for name in (o.partition("=")[2] for o in member.overrides if o.startswith("recipe=")):
                by_recipe.setdefault(name, []).append(member.folder)
        if not by_recipe:
            return
        from runner.recipes import show_against_reference

        codes = {show_against_reference(name, folders, self._out) for name, folders in by_recipe.items()}
        if not self.exit_code:
            self.exit_code = 1 if 1 in codes else max(codes)

    def _outcome(self, folder: RunFolder) -> float | None:
        """How a run ended that was run elsewhere."""
        status = folder.read_status()
        if status["state"] == "finished":
            return self._show(folder)
        self.exit_code = 1
        if self._crowd is None:
            self._tell(WorkerFailed(f"{status['reason']}", trace=status.get("trace", "")))
            self._say_where()
        return None

    def _show(self, folder: RunFolder) -> float | None:
        summary = Summary.of(folder)
        if self._sweep is None:
            show_run(summary, self._out)
        return summary.objective

    def _start(self, plan: Plan, folder: RunFolder) -> None:
        progress = Progress(folder, self._out)
        if self._nodes is not None and plan.config.hardware.nodes > 1:
            self._nodes.launch(plan, folder, progress)
        else:
            launch(plan, folder, progress)

    def _compare(self, sweep: Path, folders: Sequence[RunFolder]) -> None:
        """The verdicts on a sweep's jobs, and their page. Whatever hinders it must not hide how the jobs went."""
        if len(folders) < 2:
            return
        from runner.compare.report import write
        from runner.compare.session import compare
        from runner.compare.table import show_verdicts

        try:
            comparison = compare([str(folder.path) for folder in folders])
            show_verdicts(comparison, self._out)
            write(comparison, sweep / "report.html")
        except (RunnerError, OSError) as error:
            self._out.print(f"not compared: {error}", markup=False, highlight=False, soft_wrap=True)
            return
        self._out.print(f"report: {sweep / 'report.html'}", markup=False, highlight=False, soft_wrap=True)

    def _gather(self, plan: Plan) -> dict[int, dict[str, Any]] | None:
        """What the other machines are, once all that the plan asks for have joined; None where there are none."""
        if plan.config.hardware.nodes == 1 or plan.config.link.chosen:  # with a link all are on this one
            return None
        if self._nodes is None:
            assert plan.config.rendezvous is not None, "checked before"
            self._nodes = Nodes(plan.config.rendezvous, common(self._typed[1:]), self._out)
        self._nodes.gather(plan)
        return self._nodes.facts

    def _create(self, job: Job) -> RunFolder:
        folder = make_folder(job, self._command)
        self._members.append(Member(job.number, job.overrides, folder))
        if job.sweep is not None and self._crowd is None:
            self._out.print(
                f"[bold]#{job.number}[/bold] {escape(' '.join(job.overrides))}", highlight=False, soft_wrap=True
            )
        return folder

    def _lost(self, job: Job, error: RunnerError) -> None:
        """A job has failed before it had a folder."""
        if job.sweep is None:
            self._tell(error)
        else:
            self._asked[job.number] = Asked(job.number, job.overrides, str(error))
            if self._crowd is None:
                print(f"#{job.number}: {error}", file=sys.stderr)

    def _say_where(self) -> None:
        where = f"run folder: {self._members[-1].folder.path}"
        self._out.print(where, markup=False, highlight=False, soft_wrap=True)

    @staticmethod
    def _tell(error: RunnerError) -> None:
        if isinstance(error, WorkerFailed) and error.trace:
            print(error.trace, file=sys.stderr, end="")
        print(error, file=sys.stderr)
