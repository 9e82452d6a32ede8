"""`tracker=mlflow`: one run in a local file store, `mlruns/` of the run's folder or `tracker.folder`.

MLflow has one step for each metric: `batch/...` counts micro-batches, `update/...` and `eval/...` count updates, and
`batch_over_updates/loss` is drawn over updates, too. Its file store is complete and needs no database; current versions
of MLflow ask for a variable to be set before they use it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from runner.plan import Plan, flat
from runner.rundir import RunFolder
from runner.surroundings import MlflowTracker
from runner.tracker.point import Point, config_of, name_of

BATCH_OVER_UPDATES = "batch_over_updates/loss"
METRICS = 1000  # the most that one call takes
PARAMETERS = 100  # and of parameters
_STATES = {"finished": "FINISHED", "interrupted": "KILLED"}


class Mlflow:
    """A run of MLflow. Experiments of MLflow are named by `tracker.project`; our digests are tags."""

    def __init__(self, plan: Plan, chosen: MlflowTracker, folder: RunFolder):
        place = Path(chosen.folder) if chosen.folder is not None else folder.path / "mlruns"
        self._client = MlflowClient(tracking_uri=place.absolute().as_uri())
        found = self._client.get_experiment_by_name(chosen.project)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(chosen.project)
        tags = {"experiment": plan.experiment, "setup": plan.setup, "folder": str(folder.path.absolute())}
        self._id = self._client.create_run(experiment, run_name=name_of(folder), tags=tags).info.run_id

    def plan(self, plan: Plan) -> None:
        """The resolved configuration: parameters in dotted keys."""
        values = [Param(k, str(v)[:6000]) for k, v in flat(config_of(plan)).items()]
        for start in range(0, len(values), PARAMETERS):
            self._client.log_batch(self._id, params=values[start : start + PARAMETERS])

    def log(self, points: Sequence[Point]) -> None:
        """One entry in the history of each metric."""
        now = int(time.time() * 1000)
        metrics = []
        for point in points:
            metrics += [Metric(name, float(value), now, point.step) for name, value in point.values.items()]
            if "batch/loss" in point.values:
                metrics.append(Metric(BATCH_OVER_UPDATES, float(point.values["batch/loss"]), now, point.update))
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + METRICS])

    def close(self, state: str) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, _STATES.get(state, "FAILED"))
