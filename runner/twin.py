"""A run's twin: the same run from weights disturbed by one unit in their last place.

What its curve differs in is what rounding alone does in that experiment: a yardstick for `compare`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from runner.build import check_targets
from runner.compare.read import Run, read_run
from runner.compare.session import TWIN_ENDING, twin_text
from runner.environment import capture
from runner.errors import ConfigError, Problem, WorkerFailed, check_all
from runner.launch.ending import Terminated, recorded
from runner.launch.hardware import check_hardware
from runner.launch.local import launch
from runner.launch.progress import Progress
from runner.plan import Plan, make_plan
from runner.rundir import RunFolder, create, write_text


def plan_to_disturb(path: Path) -> Plan:
    """The plan of the twin of the run at `path`. Raises ConfigError if that is no run, or cannot run here."""
    run = RunFolder(path)
    if not run.plan.exists():
        what = "there is no such folder" if not path.exists() else "is no run's folder: it has no plan.json"
        raise ConfigError([Problem(str(path), what, "Type: python -m runner twin outputs/DAY/RUN")])
    try:
        config = run.read_plan().config
    except ValueError:  # pydantic's too
        raise ConfigError([Problem(str(run.plan), "is no plan of this version")]) from None
    if config.hardware.nodes > 1 and not config.link.chosen:
        what = f"ran on {config.hardware.nodes} machines, and a twin runs on this one"
        fix = (
            f"Train the experiment here with hardware={config.hardware.processes}cpu, and take the twin of that run, which has "
            "the same updates"
        )
        raise ConfigError([Problem(str(path), what, fix)])
    plan = make_plan(config).model_copy(update={"disturb": True})
    check_all(lambda: check_targets(plan.config), lambda: check_hardware(plan))
    return plan


def make_twin(path: Path, plan: Plan) -> int:
    """Train `plan`, the twin of the run at `path`, into a folder beside it. Returns the exit code."""
    run = RunFolder(path)
    out = Console()
    beside = path.resolve()
    texts = [p.read_text() if p.exists() else "" for p in (run.config, run.overrides)]
    place = beside.with_name(beside.name + TWIN_ENDING)
    folder: RunFolder | None = None
    try:
        with recorded(lambda: create(place, plan, texts[0], texts[1])) as folder:
            write_text(folder.environment, capture(plan, sys.argv))
            launch(plan, folder, Progress(folder, out))
    except WorkerFailed as error:
        print(error.trace, error, sep="", file=sys.stderr)
        return error.exit_code
    except Terminated as ended:
        return 128 + ended.number
    finally:
        if folder is not None:
            out.print(f"run folder: {folder.path}", markup=False, highlight=False, soft_wrap=True)
    pair = [read_run(p) for p in (beside, folder.path)]
    if isinstance(pair[0], Run) and isinstance(pair[1], Run):
        out.print(twin_text(pair[0], pair[1]), markup=False, highlight=False, soft_wrap=True)
    return 0
