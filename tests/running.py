"""Running an experiment in a temporary folder and reading its rows back.

    Bench.run       a whole run, its ranks forked from the session's warm server; equal requests share one run
    Bench.open      the parts of a one-process run, in this very process, for a test to look into or to break

Choices and values are given as on the command line; groups are composed by Hydra once for each combination.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from runner import records, rundir, validation, worker
from runner.backend import open_backend
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.errors import WorkerFailed
from runner.launch.ending import recorded
from runner.launch.local import launch
from runner.launch.progress import Progress
from runner.loop import Training
from runner.plan import Plan, make_plan
from runner.precision import Precision
from runner.rundir import RunFolder
from runner.world import World

_TWO_NODES = False
_HALVED = ("2cpu", "4cpu", "8cpu")
DEADLINE = 90.0  # seconds after which a run counts as hanging

# What the tests of values by hand want: plain SGD, which hides no constant factor of a gradient.
_GROUPS = {"optim": "sgd", "schedule": "constant", "hardware": "cpu"}
_VALUES = {"hardware.threads": 1, "hardware.timeout": 60.0, "budget.epochs": 1}
_MODULES = {"Text": "probe_text"}
_GROUP_NAMES = (
    "optim", "schedule", "batch", "hardware", "sync", "compress", "precision", "seeding", "lr_scaling", "link",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run that has ended, as its folder tells it."""

    folder: RunFolder

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        return list(records.read(self.folder.updates))

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """The micro-batches' rows, in the order of their place in the run rather than of their writing."""
        return sorted(records.read(self.folder.batches), key=lambda r: (r["update"], r["micro"]))

    @cached_property
    def evals(self) -> list[dict[str, Any]]:
        return list(records.read(self.folder.evals)) if self.folder.evals.exists() else []

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = torch.load(self.folder.model)
        return found

    @property
    def plan(self) -> Plan:
        return self.folder.read_plan()

    def column(self, name: str, rows: str = "updates") -> list[Any]:
        return [row[name] for row in getattr(self, rows)]

    def watched(self, rank: int) -> list[dict[str, Any]]:
        """What `tests.watching` has noted on a rank, a row for each update."""
        return list(records.read(self.folder.logs / f"watched-{rank}.jsonl"))


class Bench:
    """Runs experiments under one temporary folder."""

    def __init__(self, root: Path):
        self._root, self._count = root, 0
        self._done: dict[str, Run] = {}

    def run(self, task: str, arguments: Mapping[str, Any] | None = None, *settings: str, again: bool = False) -> Run:
        """The run of a probe task. Asked for twice, it is done once, unless `again`. Raises WorkerFailed."""
        key = json.dumps([task, dict(arguments or {}), sorted(settings)])
        if key not in self._done or again:
            self._done[key] = self._start(plan_of(task, arguments, *settings))
        return self._done[key]

    def fail(
        self, task: str, arguments: Mapping[str, Any] | None = None, *settings: str, within: float = DEADLINE
    ) -> Run:
        """A run that is expected to fail within so many seconds. Raises AssertionError if it does not."""
        folder = self._folder(plan_of(task, arguments, *settings))
        try:
            self._launch(folder, within)
        except WorkerFailed:
            return Run(folder)
        raise AssertionError(f"the run in {folder.path} did not fail")

    def open(self, task: str, arguments: Mapping[str, Any] | None = None, *settings: str) -> tuple[Training, Run]:
        """The parts of a run of one process, not started yet, and where its rows will be."""
        plan = plan_of(task, arguments, *settings)
        assert plan.arithmetic.processes == 1, "only a run of one process fits into this one"
        folder = self._folder(plan)
        torch.set_num_threads(1)
        world, backend = World(0, 1), open_backend(plan.config.hardware.device, 0)
        precision = Precision(plan.config.precision.name, backend.device.type, plan.config.precision.weights)
        experiment = worker.make_experiment(plan, precision, backend)
        plan = worker.complete(plan, world, experiment)
        return worker.prepare(plan, folder, world, backend, precision, experiment), Run(folder)

    def _start(self, plan: Plan) -> Run:
        folder = self._folder(plan)
        self._launch(folder)
        return Run(folder)

    def _folder(self, plan: Plan) -> RunFolder:
        self._count += 1
        return rundir.create(self._root / str(self._count), plan, "", "")

    def _launch(self, folder: RunFolder, within: float = DEADLINE) -> None:
        with _deadline(within), recorded(lambda: folder):
            launch(folder.read_plan(), folder, Progress(folder, Console(file=io.StringIO())))


def parting(one: Run, other: Run, tolerance: float) -> str | None:
    """Where two runs first part, and in what; None if they never do. Losses may differ by `tolerance`, relatively."""
    if len(one.updates) != len(other.updates) or len(one.batches) != len(other.batches):
        return f"{len(one.updates)} and {len(other.updates)} updates, {len(one.batches)} and {len(other.batches)} micro-batches"
    rows = zip(one.updates + one.batches, other.updates + other.batches, strict=True)
    for a, b in rows:
        for key in ("update", "micro", "epoch", "items", "digest", "lr", "weight", "skipped"):
            if a.get(key) != b.get(key):
                return f"{key} of {a} and {b}"
        for key in ("loss", "grad_norm"):
            if key in a and abs(a[key] - b[key]) > tolerance * abs(a[key]):
                return f"{key} of {a} and {b}"
    return None


def spread_over_two_nodes() -> None:
    """From now on, what a test gives to 2, 4 or 8 processes is done by two nodes with half of them each."""
    global _TWO_NODES
    _TWO_NODES = True


def plan_of(task: str, arguments: Mapping[str, Any] | None = None, *settings: str) -> Plan:
    """The plan of a probe task (or, with a dot in its name, of any) under `group=choice` and `key.of.value=JSON`."""
    groups, values = dict(_GROUPS), dict(_VALUES)
    for setting in settings:
        key, _, text = setting.partition("=")
        if key in _GROUP_NAMES:
            groups[key] = text
        else:
            values[key] = _parsed(text)
    if _TWO_NODES and groups.get("link", "none") == "none" and groups["hardware"] in _HALVED:
        groups["link"] = "10gbit"
        values["hardware.nodes"] = 2
    needed = tuple((k, v) for k, v in values.items() if k.endswith("._target_") or k == "lr_scaling.reference")
    plain = json.loads(_composed(tuple(sorted(groups.items())), needed))
    target = task if "." in task else f"tests.{_MODULES.get(task, 'probe_tasks')}.{task}"
    plain["task"] = {"_target_": target, **(arguments or {})}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = plain
        for section in sections:
            place = place[section]
        place[name] = value
    return make_plan(validation.read(plain))


@cache
def _composed(groups: tuple[tuple[str, str], ...], needed: tuple[tuple[str, Any], ...]) -> str:
    """The configuration of some choices as JSON: what Hydra makes of a command line, made once."""
    overrides = [f"{k}={v}" for k, v in groups + needed]
    sized = ["batch.size=840"]  # fits any number of processes; every test sets its own
    sized += ["batch.per_device=1"] if ("batch", "auto") in groups else []
    plan = compose_one(parse(["task=custom", "task._target_=tests.probe_tasks.Scalar", *sized, *overrides]))
    return plan.config.model_dump_json(by_alias=True)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in this thread when `seconds` have passed: a hang fails one test, not the session."""

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
