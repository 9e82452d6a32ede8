"""The configuration's types: what keys there are, what values they take.

`read` turns the plain dictionary that Hydra composed into a frozen `Config`, or raises one
`ConfigError` that holds every problem at once. No torch, no Hydra.
"""

from __future__ import annotations

import difflib
import json
import re
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from runner.errors import ConfigError, Problem


class Device(str, Enum):
    cpu = "cpu"
    cuda = "cuda"
    xla = "xla"


class Parallel(str, Enum):
    """ddp: every process holds the model; fsdp: each holds a share of it; hsdp: several copies, each shared."""

    ddp = "ddp"
    fsdp = "fsdp"
    hsdp = "hsdp"


class BatchMode(str, Enum):
    observed = "observed"
    per_device = "per_device"
    auto = "auto"


class Remainder(str, Enum):
    """What becomes of an epoch's last, short window."""

    keep = "keep"
    drop = "drop"
    pad = "pad"


class SyncPolicy(str, Enum):
    accumulate = "accumulate"
    no_sync = "no_sync"
    every_batch = "every_batch"
    backward_only = "backward_only"
    accumulate_local = "accumulate_local"  # hsdp: inside a copy at every micro-batch, between copies once


class PrecisionName(str, Enum):
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"
    fp64 = "fp64"


class WeightFormat(str, Enum):
    bf16 = "bf16"


class SeedingMode(str, Enum):
    fast = "fast"
    exact = "exact"
    bitwise = "bitwise"


class ScalingRule(str, Enum):
    none = "none"
    linear = "linear"
    sqrt = "sqrt"


class NonFinite(str, Enum):
    stop = "stop"
    skip = "skip"


class StopMode(str, Enum):
    min = "min"
    max = "max"

    @property
    def sign(self) -> int:
        """What a value is multiplied by so that less is better."""
        return 1 if self is StopMode.min else -1


class TrackerMode(str, Enum):
    offline = "offline"
    online = "online"
    disabled = "disabled"


class Section(BaseModel):
    """A part of the configuration: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )


class Open(Section):
    """A section whose further keys are free: they become arguments of the class that `_target_` names."""

    model_config = ConfigDict(extra="allow")
    target: Annotated[str, Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


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
    mode: BatchMode
    size: PositiveInt
    per_device: PositiveInt | None = None
    remainder: Remainder


class Hardware(Section):
    """`processes` counts the processes of all `nodes` together."""

    device: Device
    processes: PositiveInt
    nodes: PositiveInt = 1
    parallel: Parallel = Parallel.ddp
    shard: PositiveInt | None = None  # hsdp: processes that share one copy of the model; None: those of a node
    threads: PositiveInt | None = None  # of one process; None: the machine's cores divided by its processes
    memory: PositiveFloat | None = None  # of one device, in GiB: what a predicted peak is held against
    timeout: PositiveFloat = 300.0  # seconds that a rank waits for another before the run fails

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


class Sync(Section):
    policy: SyncPolicy


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


class Link(Section):
    name: Literal["none"]


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
    sync: Sync
    precision: Precision
    seeding: Seeding
    lr_scaling: LrScaling
    link: Link
    tracker: Annotated[LocalTracker | WandbTracker | TensorboardTracker | MlflowTracker, Field(discriminator="name")]
    accum: PositiveInt
    compile: bool = False
    activation_checkpoint: bool = False  # compute the activations of blocks again in the backward
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    budget: Budget
    data: Data
    eval: Eval
    early_stop: EarlyStop
    log: Log
    nonfinite: NonFinite


def read(values: dict[str, Any]) -> Config:
    """The checked configuration of plain `values`. Raises ConfigError with every problem in them."""
    try:
        # through JSON: there, strict types still accept the text of an enum and a list for a tuple
        return Config.model_validate_json(json.dumps(values))
    except ValidationError as error:
        found = [_problem(e, values) for e in error.errors()]
        raise ConfigError({p.key: p for p in reversed(found)}.values()) from None  # a union reports a key twice


def keys_of(section: str) -> list[str]:
    """The keys that may stand directly in `section` ('' for the top), whatever is chosen for it."""
    if not section:
        return list(Config.model_fields)
    field = Config.model_fields.get(section)
    if field is None:
        return []
    annotation: Any = field.annotation
    models: list[Any] = [m for m in getattr(annotation, "__args__", (annotation,)) if isinstance(m, type)]
    return list(dict.fromkeys(f.alias or n for m in models for n, f in m.model_fields.items()))


def is_open(section: str, values: dict[str, Any]) -> bool:
    """Whether further keys are free in `section`: a task's own, or a custom optimizer's."""
    chosen = values.get(section)
    return section == "task" or (isinstance(chosen, dict) and chosen.get("name") == "custom")


def _problem(error: Any, values: dict[str, Any]) -> Problem:
    """A validation error of pydantic in one line: the dotted key, what was found, what may stand there."""
    loc = [str(part) for part in error["loc"]]
    tagged = len(loc) > 1 and loc[0] in ("optim", "schedule", "tracker")
    if tagged:  # pydantic puts the chosen class between the section and the key
        loc.pop(1)
    if loc[-1] in ("int", "str", "constrained-int"):
        loc.pop()
    key, kind, found, context = ".".join(loc), error["type"], error["input"], error.get("ctx", {})
    shown = json.dumps(found) if not isinstance(found, str) else f"'{found}'"
    if kind == "extra_forbidden":
        section = ".".join(loc[:-1])
        return unknown_key(key, _siblings(section, values))
    if kind == "missing" and loc[-1].isdigit():
        return Problem(".".join(loc[:-1]), f"{shown} has too few values")
    if kind == "missing":
        return Problem(key, "is missing", f"Set it with {key}=...")
    if kind in ("enum", "literal_error"):
        return Problem(key, f"{shown} is none of the choices {context['expected'].replace(chr(39), '')}")
    if kind == "string_pattern_mismatch":
        return Problem(key, f"{shown} does not name a class", f"Give its full name: {key}=my_module.MyClass")
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return Problem(key, f"{shown} {message}" if message.startswith("should") else f"{shown}: {message}")


def _siblings(section: str, values: dict[str, Any]) -> list[str]:
    """The keys that a message should offer: those of the choice that was made, where they differ."""
    chosen = values.get(section)
    field = Config.model_fields.get(section)
    models: tuple[Any, ...] = getattr(field.annotation, "__args__", ()) if field is not None else ()
    for model in models:
        names = model.model_fields["name"].annotation.__args__
        if isinstance(chosen, dict) and chosen.get("name") in names:
            return [f.alias or n for n, f in model.model_fields.items() if n != "name"]
    return keys_of(section)


def unknown_key(key: str, choices: list[str]) -> Problem:
    """The problem of a key that does not exist, with the one that was probably meant."""
    section, _, name = key.rpartition(".")
    close = difflib.get_close_matches(name, choices, 1)
    dotted = f"{section}.{close[0]}" if close and section else (close[0] if close else "")
    where = f"of {section} " if section else ""
    listed = f"The keys {where}are: {', '.join(sorted(choices))}"
    return Problem(key, "is not a key of the configuration", (f"Did you mean {dotted}? " if dotted else "") + listed)
