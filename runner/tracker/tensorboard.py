"""`tracker=tensorboard`: an event file in `tensorboard/` of the run's folder.

Written by TensorBoard's own writer and without torch, so that the parent process stays light. TensorBoard has one step
for each curve: curves `batch/...` are drawn over micro-batches, `update/...` and `eval/...` over updates, and
`batch_over_updates/loss` over updates, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from runner.plan import Plan
from runner.rundir import RunFolder
from runner.tracker.point import Point, config_of

BATCH_OVER_UPDATES = "batch_over_updates/loss"


class TensorBoard:
    """An event file."""

    def __init__(self, plan: Plan, folder: RunFolder):
        self._writer = EventFileWriter(str(folder.path / "tensorboard"))
        self._text("experiment", plan.experiment)
        self._text("setup", plan.setup)

    def plan(self, plan: Plan) -> None:
        """The resolved configuration, as text."""
        self._text("config", f"```json\n{json.dumps(config_of(plan), indent=2)}\n```")

    def log(self, points: Sequence[Point]) -> None:
        """One event for each point, and one for a micro-batch's loss over updates."""
        for point in points:
            self._scalars(point.step, point.values)
            if "batch/loss" in point.values:
                self._scalars(point.update, {BATCH_OVER_UPDATES: point.values["batch/loss"]})

    def close(self, state: str) -> None:
        """Say how the run ended, and write everything out."""
        self._text("status", state)
        self._writer.close()

    def _scalars(self, step: int, values: dict[str, float]) -> None:
        summary = Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in values.items()])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def _text(self, tag: str, text: str) -> None:
        metadata = create_summary_metadata(display_name=None, description=None)
        value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto([text.encode()]))
        self._writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
