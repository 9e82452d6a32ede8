"""A run's twin: the same run from weights disturbed by one unit in their last place.

What its curve differs in is what rounding alone does in that experiment: a yardstick for `compare`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from runner.compare.session import TWIN_ENDING
from runner.environment import capture
from runner.errors import RecordError, WorkerFailed
from runner.launch.ending import Terminated, recorded
from runner.launch.hardware import check_hardware
from runner.launch.local import launch
from runner.launch.progress import Progress
from runner.plan import make_plan
from runner.rundir import RunFolder, create, write_text


def make_twin(path: Path) -> int:
    """Train the twin of the run at `path`, into a folder beside it. Returns the exit code."""
    run = RunFolder(path)
    if not run.plan.exists():
        raise RecordError(f"{path} is no run's folder: it has no plan.json")
    plan = make_plan(run.read_plan().config).model_copy(update={"disturb": True})
    check_hardware(plan)
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
    return 0
