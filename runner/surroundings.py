"""What a run has around it, as the configuration says: the link between its nodes, its tracker, who starts it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from runner.choices import TrackerMode
from runner.section import Section


class Link(Section):
    """What joins the nodes of a run that all are on this machine: `rate` in Mbit/s, `delay` and `jitter` in ms one way,
    `loss` in percent. `simulate`: reductions are late by as much as the link would make them."""

    name: Annotated[str, Field(min_length=1)]
    rate: PositiveFloat | None = None
    delay: NonNegativeFloat = 0.0
    jitter: NonNegativeFloat = 0.0
    loss: Annotated[float, Field(ge=0, lt=100)] = 0.0
    simulate: bool = False

    @property
    def chosen(self) -> bool:
        """Whether there is a link at all."""
        return self.name != "none"


class LocalTracker(Section):
    name: Literal["local"]


class WandbTracker(Section):
    name: Literal["wandb"]
    mode: TrackerMode
    project: Annotated[str, Field(min_length=1)]
    entity: str | None


class TensorboardTracker(Section):
    name: Literal["tensorboard"]


class MlflowTracker(Section):
    name: Literal["mlflow"]
    project: Annotated[str, Field(min_length=1)]
    folder: str | None


class LocalLaunch(Section):
    name: Literal["local"]


class SlurmLaunch(Section):
    """What a Slurm job asks for; `gpus`, `cpus` and `memory` (GiB) are those of one node, `time` is in minutes."""

    name: Literal["slurm"]
    partition: str | None = None
    time: PositiveInt = 60
    gpus: PositiveInt | None = None
    cpus: PositiveInt | None = None
    memory: PositiveFloat | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: tuple[str, ...] = ()
    extra: dict[str, str | int] = {}
    poll: PositiveFloat = 10.0
