"""Runs as jobs of Slurm: submitted by submitit, followed through their folders, cancelled with the command.

One task on every node of a job. The first node's has the run's folder, on a disk that both see, and says in the end how it
went; the others join it. The command only watches.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from runner.choices import Device
from runner.errors import ConfigError, Problem, RunnerError, WorkerFailed
from runner.job import perform
from runner.launch import joining, queue
from runner.launch.chosen import chosen
from runner.launch.ending import Terminated
from runner.launch.local import launch
from runner.launch.nodes import Nodes
from runner.launch.progress import Progress, Silent
from runner.launch.slurm import address_of, rendezvous
from runner.plan import Plan
from runner.rundir import RunFolder, write_text
from runner.surroundings import SlurmLaunch

SEEN_WITHIN = 10.0  # seconds that a shared disk may take to show what another machine has written


@dataclass(frozen=True, slots=True)
class NodeTask:
    """What runs on every node of a Slurm job."""

    folder: Path
    typed: tuple[str, ...]

    def __call__(self) -> int:
        folder = RunFolder(self.folder)
        plan = folder.read_plan()
        rank = int(os.environ["SLURM_NODEID"])
        where = rendezvous(os.environ, address_of)
        if rank > 0:
            return joining.join(joining.Seat(rank, where, plan.config.node.wait), [])
        signal.signal(signal.SIGUSR2, _out_of_time)
        try:
            plan = chosen(plan)
        except RunnerError as error:
            folder.write_status("failed", reason=str(error), finished=time.time())
            return error.exit_code
        write_text(folder.plan, plan.to_json() + "\n")
        nodes = Nodes(where, [], Console(quiet=True)) if machines(plan) > 1 else None

        def gathered() -> dict[int, dict[str, Any]] | None:
            if nodes is None:
                return None
            nodes.gather(plan)
            return nodes.facts

        try:
            start = nodes.launch if nodes else launch
            met = plan.model_copy(update={"config": plan.config.model_copy(update={"rendezvous": where})})
            perform(plan, self.typed, self._adopt, lambda f: _cancelled_as_one(start, met, f), gathered)
        except RunnerError as error:
            print(error, file=sys.stderr)
            return 1
        except Terminated as ended:
            return 128 + ended.number
        finally:
            if nodes is not None:
                nodes.close()
        return 0

    def _adopt(self) -> RunFolder:
        """The folder that the command has made: from now on this process runs what is in it."""
        folder = RunFolder(self.folder)
        folder.write_status("running", pid=os.getpid(), host=os.uname().nodename)
        return folder


def _cancelled_as_one(start: Callable[[Plan, RunFolder, Silent], None], plan: Plan, folder: RunFolder) -> None:
    """Run a plan. Who cancels a job ends all nodes at once: that another one was ended first is no failure of its own."""
    try:
        start(plan, folder, Silent())
    except WorkerFailed as error:
        if str(error).endswith("was ended by SIGTERM"):
            raise Terminated(signal.SIGTERM) from None
        raise


def _out_of_time(number: int, _frame: object) -> None:
    """Slurm's warning before the time limit."""
    raise Terminated(number, "by which Slurm says that the time limit of its job is near: raise launch.time")


class Batch:
    """Runs that were submitted together."""

    def __init__(self, folders: Sequence[RunFolder], typed: Sequence[str], place: Path, out: Console):
        """`place` is where submitit keeps its files, and Slurm its logs."""
        self._folders, self._typed, self._place, self._out = list(folders), tuple(typed), place, out
        self._jobs: dict[RunFolder, str] = {}
        self._guard = queue.Guard()
        self._told: set[str] = set()

    def submit(self) -> None:
        """One array for all runs that ask for the same machines. A run of which Slurm refuses the array has failed."""
        alike: dict[str, list[RunFolder]] = defaultdict(list)
        options: dict[str, dict[str, Any]] = {}
        for folder in self._folders:
            wanted = options_of(folder.read_plan())
            alike[repr(wanted)].append(folder)
            options[repr(wanted)] = wanted
        for name, folders in alike.items():
            try:
                numbers = self._submit(folders, options[name])
            except RunnerError as error:
                for folder in folders:
                    self._settle(folder, "failed", str(error))
                continue
            self._guard.watch(numbers)
            self._jobs.update(zip(folders, numbers, strict=True))
            for folder, number in zip(folders, numbers, strict=True):
                with contextlib.suppress(RunnerError):
                    folder.write_status(folder.read_status()["state"], slurm=number)
        if self._jobs:
            self._out.print(f"submitted to Slurm as {', '.join(self._jobs.values())}", highlight=False, soft_wrap=True)

    def _submit(self, folders: Sequence[RunFolder], options: dict[str, Any]) -> list[str]:
        import submitit

        tasks = [NodeTask(f.path.absolute(), self._typed) for f in folders]
        executor = submitit.SlurmExecutor(folder=self._place)
        try:
            executor.update_parameters(**options)
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what the error has, too
                if len(tasks) == 1:
                    return [str(executor.submit(tasks[0]).job_id)]
                with executor.batch():
                    jobs = [executor.submit(task) for task in tasks]
                return [str(job.job_id) for job in jobs]
        except (submitit.core.utils.FailedJobError, RuntimeError, ValueError) as error:
            told = [
                line.partition("error: ")[2] for line in str(error).splitlines() if line.startswith("sbatch: error: ")
            ]
            raise RunnerError(f"Slurm did not take the job: {'; '.join(told) or error}") from error

    def wait(self, progress: Progress | Silent) -> None:
        """Until every run has ended, whatever became of its job."""
        poll = self._poll()
        asked, overdue = time.monotonic(), dict[RunFolder, float]()
        while left := [f for f in self._folders if _running(f)]:
            time.sleep(progress.interval)
            progress.show()
            if time.monotonic() - asked > poll:
                asked = time.monotonic()
                self._ask(left, overdue)
        self._explain()
        self._guard.dismiss()
        progress.finish()

    def cancel(self) -> None:
        """Cancel what is left, and see that every run says so."""
        queue.cancel([job for folder, job in self._jobs.items() if _running(folder)])
        deadline = time.monotonic() + SEEN_WITHIN
        while any(map(_running, self._folders)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for folder in filter(_running, self._folders):
            self._settle(folder, "interrupted", "its Slurm job was cancelled")
        self._guard.dismiss()

    def _ask(self, folders: Sequence[RunFolder], overdue: dict[RunFolder, float]) -> None:
        """Ask Slurm how the jobs of runs are that have not ended; settle those whose job has, some time ago."""
        found = queue.states([self._jobs[f] for f in folders])
        for folder in folders if found is not None else ():
            state = found[self._jobs[folder]]  # type: ignore[index]
            if queue.over(state):
                if time.monotonic() - overdue.setdefault(folder, time.monotonic()) >= SEEN_WITHIN:
                    log = self._place / f"{self._jobs[folder]}_0_log.out"
                    self._settle(folder, _fate(state), f"its Slurm job {self._jobs[folder]} is {state}; see {log}")
            elif state.startswith("PENDING") and self._jobs[folder] not in self._told:
                self._told.add(self._jobs[folder])
                never = (
                    ". What it asks for is not to be had there: it may wait for ever" if queue.in_vain(state) else ""
                )
                said = f"Slurm job {self._jobs[folder]} waits {state[8:]}{never}"
                self._out.print(said, markup=False, highlight=False, soft_wrap=True)

    def _explain(self) -> None:
        """Runs that a signal ended know no more than that: say what Slurm calls it, where it says so soon."""
        left = {f: f.read_status() for f in self._jobs}
        left = {f: told for f, told in left.items() if told["state"] == "interrupted"}
        deadline = time.monotonic() + SEEN_WITHIN
        while left and time.monotonic() < deadline:
            found = queue.states([self._jobs[f] for f in left]) or {}
            for folder, told in list(left.items()):
                state = found.get(self._jobs[folder], "")
                if queue.over(state):
                    del left[folder]
                    if state.startswith(queue.ENDED_BY_SLURM):
                        why = f"{told['reason']}: its Slurm job {self._jobs[folder]} is {state}"
                        folder.write_status(_fate(state), reason=why)
            time.sleep(0.5 if left else 0.0)

    def _poll(self) -> float:
        asked = self._folders[0].read_plan().config.launch
        return asked.poll if isinstance(asked, SlurmLaunch) else 10.0

    @staticmethod
    def _settle(folder: RunFolder, state: str, reason: str) -> None:
        if _running(folder):
            folder.write_status(state, reason=reason, finished=time.time())


def check_launch() -> None:
    """Raises ConfigError where nothing can be submitted from here."""
    problems = []
    if shutil.which("sbatch") is None:
        what = "launch=slurm needs Slurm's commands, and there is no sbatch here"
        problems.append(Problem("launch", what, "Type the command on a machine of the cluster, or use launch=local"))
    if importlib.util.find_spec("submitit") is None:
        problems.append(
            Problem("launch", "launch=slurm needs submitit", 'Install it: pip install "samestep[submitit]"')
        )
    if problems:
        raise ConfigError(problems)


def machines(plan: Plan) -> int:
    """How many a plan needs: with a link, all of its nodes are on one."""
    return 1 if plan.config.link.chosen else plan.config.hardware.nodes


def options_of(plan: Plan) -> dict[str, Any]:
    """What submitit is asked for: the machines of a plan, as `launch` wants them."""
    hardware, asked = plan.config.hardware, plan.config.launch
    assert isinstance(asked, SlurmLaunch)
    each = hardware.processes // machines(plan)
    gpus = asked.gpus or (each if hardware.device is Device.cuda else None)
    wanted = {
        "job_name": "samestep",
        "nodes": machines(plan),
        "ntasks_per_node": 1,
        "cpus_per_task": asked.cpus or each,
        "gpus_per_node": gpus,
        "time": asked.time,
        "mem": f"{round(asked.memory * 1024)}M" if asked.memory else None,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "setup": list(asked.setup) or None,
        "additional_parameters": {
            "no-requeue": True,
            **asked.extra,
        },  # started again, it would write into the same folder
        "stderr_to_stdout": True,
    }
    return {k: v for k, v in wanted.items() if v is not None}


def _fate(state: str) -> str:
    """The state of a run whose job Slurm has ended."""
    return "interrupted" if state.startswith(queue.ON_PURPOSE) else "failed"


def _running(folder: RunFolder) -> bool:
    return bool(folder.read_status()["state"] == "running")
