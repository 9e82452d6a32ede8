"""`tracker=wandb`: one run of Weights & Biases for each run folder, offline unless told otherwise.

Steps are wandb's own and only count calls, since it drops a row whose step is smaller than the last one's without a word;
`batch` and `update` are columns of every row and declared as axes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import wandb

from runner.plan import Plan
from runner.rundir import RunFolder
from runner.surroundings import WandbTracker
from runner.tracker.point import AXES, EXIT_CODES, Point, config_of, name_of

# What wandb would collect or print by itself: environment.json has it, the terminal is the runner's, and it takes a second.
_QUIET: dict[str, Any] = {
    "console": "off", "silent": True, "quiet": True, "disable_git": True, "disable_code": True, "disable_job_creation": True,
    "x_disable_stats": True, "x_disable_machine_info": True, "x_disable_meta": True, "x_save_requirements": False,
    "symlink": False,
}  # fmt: skip


class Wandb:
    """A run of wandb. Its files lie in `wandb/` of the run's folder."""

    def __init__(self, plan: Plan, chosen: WandbTracker, folder: RunFolder):
        known = wandb.Settings.model_fields  # a version without one of them has nothing to be kept quiet about
        settings = wandb.Settings(
            **{k: v for k, v in _QUIET.items() if k in known},
            mode=chosen.mode.value,
            root_dir=str(folder.path.absolute()),
            project=chosen.project,
            entity=chosen.entity,
            run_id=_id_of(folder),
            run_name=name_of(folder),
            run_group=plan.experiment,
            run_job_type=plan.setup,
            resume="allow" if chosen.mode.value == "online" else None,  # a resumed run goes on in the same one
            reinit="create_new",
        )
        self._run = wandb.init(settings=settings, config=config_of(plan))
        for counter in ("batch", "update"):
            self._run.define_metric(counter, hidden=True)
        for kind, counter in AXES.items():
            self._run.define_metric(f"{kind}/*", step_metric=counter)

    def plan(self, plan: Plan) -> None:
        """The configuration once more: counts of items and updates are known now."""
        self._run.config.update(config_of(plan), allow_val_change=True)

    def log(self, points: Sequence[Point]) -> None:
        """One row of history for each point."""
        for point in points:
            self._run.log({"batch": point.batch, "update": point.update, **point.values})

    def close(self, state: str) -> None:
        """Finish the run with the exit code that its state stands for. Blocks until everything is written."""
        self._run.finish(exit_code=EXIT_CODES.get(state, 1))


def _id_of(folder: RunFolder) -> str:
    """The same for a run that is resumed in its folder, different for all others."""
    mark = f"{os.uname().nodename} {folder.path.absolute()} {folder.read_status().get('started')}"
    return blake2b(mark.encode(), digest_size=6).hexdigest()
