"""The configuration's types: what keys there are, what values they take.

`runner.validation.read` makes a `Config` of plain values. No torch, no Hydra.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from runner.choices import (
    BatchMode,
    CompressName,
    Device,
    NonFinite,
    Parallel,
    PrecisionName,
    Remainder,
    ScalingRule,
    SeedingMode,
    StopMode,
    SyncPolicy,
    WeightFormat,
)
from runner.section import Open, Section
from runner.surroundings import (
    Link,
    LocalLaunch,
    LocalTracker,
    MlflowTracker,
    SlurmLaunch,
    TensorboardTracker,
    WandbTracker,
)


class Task(Open):
    """The task: its class, and the arguments that it is made with."""


class Adam(Section):
    name: Literal["adam", "adamw"]
    lr: NonNegativeFloat
    clip: PositiveFloat | None
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    eps: NonNegativeFloat
    weight_decay: NonNegativeFloat


class Sgd(Section):
    name: Literal["sgd"]
    lr: NonNegativeFloat
    clip: PositiveFloat | None
    momentum: NonNegativeFloat
    nesterov: bool
    weight_decay: NonNegativeFloat


class CustomOptim(Open):
    name: Literal["custom"]
    lr: NonNegativeFloat
    clip: PositiveFloat | None


class Constant(Section):
    name: Literal["constant"]
    warmup: NonNegativeInt


class Decay(Section):
    name: Literal["linear", "cosine"]
    warmup: NonNegativeInt
    end: Annotated[float, Field(ge=0, le=1)]


class Step(Section):
    name: Literal["step"]
    warmup: NonNegativeInt
    every: PositiveInt
    gamma: NonNegativeFloat


class CustomSchedule(Open):
    name: Literal["custom"]
    warmup: NonNegativeInt


class Batch(Section):
    """`per_device` under auto_memory: null until it is chosen."""

    mode: BatchMode
    size: PositiveInt
    per_device: PositiveInt | None = None
    remainder: Remainder

    @property
    def derives_accum(self) -> bool:
        """Whether accum follows from the observed batch and the micro-batch."""
        return self.mode in (BatchMode.auto, BatchMode.auto_memory)


class Hardware(Section):
    """`processes` counts the processes of all `nodes` together."""

    device: Device
    processes: PositiveInt
    nodes: PositiveInt = 1
    parallel: Parallel = Parallel.ddp
    shard: PositiveInt | None = None  # hsdp: processes that share one copy of the model; None: those of a node
    threads: PositiveInt | None = None  # of one process; None: the machine's cores divided by its processes
    memory: PositiveFloat | None = None  # of one device, in GiB: what a predicted peak is held against
    timeout: PositiveFloat = 60.0  # seconds that a rank waits for another before the run fails

    @property
    def sharded(self) -> bool:
        """Whether a process holds less than the whole model."""
        return self.parallel is not Parallel.ddp and self.processes > 1

    @property
    def copy_size(self) -> int:
        """Over how many processes one copy of the model is spread."""
        if not self.sharded:
            return 1
        return self.processes if self.parallel is Parallel.fsdp else self.shard or self.processes // self.nodes


class Node(Section):
    """Of several machines, the one that this command runs on; and how many seconds the others are waited for."""

    rank: NonNegativeInt = 0
    wait: PositiveFloat = 300.0


class Sync(Section):
    """`bucket_mb`: how much of the gradient one collective carries, in MiB; None: chosen for the link. `every` and `start`
    are local_sgd's: updates between two averages of the weights, and exact updates before the first local one."""

    policy: SyncPolicy
    bucket_mb: PositiveFloat | None = None
    every: PositiveInt | None = None
    start: NonNegativeInt | None = None


class Compress(Section):
    """What gradients are sent as. `rank` and `start` are powersgd's: columns of each factor, and exact updates before."""

    name: CompressName = CompressName.none
    rank: PositiveInt | None = None
    start: NonNegativeInt | None = None


class Precision(Section):
    """`weights`: the format of the weights themselves, where it is not that of the sums of gradients. `scale` and
    `growth_interval` are those of fp16's loss scale: its first value, and the updates without an overflow after which
    it is doubled."""

    name: PrecisionName
    weights: WeightFormat | None = None
    scale: PositiveFloat | None = None
    growth_interval: PositiveInt | None = None


class Seeding(Section):
    mode: SeedingMode


class LrScaling(Section):
    rule: ScalingRule
    reference: PositiveInt | None


class Budget(Section):
    epochs: PositiveInt | None
    updates: PositiveInt | None


class Data(Section):
    shuffle: bool
    workers: NonNegativeInt


class Eval(Section):
    every: PositiveInt | str | None

    @field_validator("every")
    @classmethod
    def _period(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and not re.fullmatch(r"[1-9]\d* ?epochs?", value):
            raise ValueError("should be a number of updates (100) or of epochs (1epoch, 5epochs)")
        return value


class EarlyStop(Section):
    metric: str | None
    mode: StopMode
    patience: NonNegativeInt
    min_delta: NonNegativeFloat


class Log(Section):
    """`memory`: measure the peak memory of all windows, or of none; None: of all where it costs nothing, else of three."""

    every: PositiveInt | None
    memory: bool | None = None


class Config(Section):
    """Everything that a user can set, checked."""

    task: Task
    optim: Annotated[Adam | Sgd | CustomOptim, Field(discriminator="name")]
    schedule: Annotated[Constant | Decay | Step | CustomSchedule, Field(discriminator="name")]
    batch: Batch
    hardware: Hardware
    node: Node = Node()
    rendezvous: str | None = None  # HOST:PORT of the node with rank 0, where several machines meet
    sync: Sync
    compress: Compress = Compress()
    precision: Precision
    seeding: Seeding
    lr_scaling: LrScaling
    link: Link
    tracker: Annotated[LocalTracker | WandbTracker | TensorboardTracker | MlflowTracker, Field(discriminator="name")]
    launch: Annotated[LocalLaunch | SlurmLaunch, Field(discriminator="name")] = LocalLaunch(name="local")
    accum: PositiveInt
    compile: bool = False
    activation_checkpoint: bool = False  # compute the activations of blocks again in the backward
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    repeat: PositiveInt = 1  # the number of a run among equal ones: neither the experiment's nor the setup's
    budget: Budget
    data: Data
    eval: Eval
    early_stop: EarlyStop
    log: Log
    nonfinite: NonFinite
