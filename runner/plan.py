"""Experiment x setup -> one frozen plan: the arithmetic of a run, checked before anything starts.

`make_plan` is pure: no torch, no files, no processes. What is only known once the data and the model are
there (items, parameters) is None until `Plan.with_sizes`.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from math import sqrt
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from runner.buckets import bucket_bytes
from runner.choices import BatchMode, CompressName, PrecisionName, Remainder, ScalingRule, SeedingMode, SyncPolicy
from runner.counts import counted
from runner.demands import unmet, warm_up
from runner.errors import ConfigError, Problem
from runner.notes import notes_on
from runner.schema import Config
from runner.window import Windows, windows_per_epoch

VERSION = 1
CARRIER_ELEMENTS = 2  # the window's loss total and weight, which travel with the gradient
VOTE_BYTES = 4
TREE_BUCKET_BYTES = 2**20  # of seeding=bitwise and precision.weights=bf16


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sizes(_Frozen):
    """What a task holds: training items, and the elements of its gradient, `last` of them in its first parameter, whose
    gradient comes last."""

    items: int
    parameters: int
    last: int = 0


class Arithmetic(_Frozen):
    """The counts of a run. `observed` = per_device x processes x accum items are in a full window.

    `items`, `updates` and `updates_per_epoch` are None where they depend on data not loaded yet.
    """

    observed: int
    per_device: int
    accum: int
    processes: int
    nodes: int
    items: int | None
    updates_per_epoch: int | None
    updates: int | None
    lr: float


class Comm(_Frozen):
    """What one update of a full window sends: all-reduces of gradient buckets, and their bytes.

    Bytes are those that one process hands to the reduction, `bucket_bytes` what one collective carries (more where a single
    parameter has more); `collectives` may be fewer, for a bucket is closed by whole parameters. None where the model is
    not known yet, or where its shapes decide.
    """

    reductions: int
    collectives: int | None
    bytes: int | None
    bucket_bytes: int | None = None


class Memory(_Frozen):
    """Peak memory of one device in bytes; None: not predicted. `parts` is what it is made of, `capacity` what a device
    has, where that is known."""

    peak_bytes: int | None
    parts: dict[str, int] = {}
    capacity: int | None = None
    assumptions: tuple[str, ...] = ()
    advice: str | None = None  # where it does not fit: what would


class Seconds(_Frozen):
    """Predicted for a full window: one `reduction` by itself, and what a process sends. The rest needs a measured pace: `compute`
    of a micro-batch, `waiting` for reductions that no backward hides; `bound` is what takes longer by itself."""

    algorithm: str
    reduction: float
    wire_bytes: int
    compute: float | None = None
    waiting: float | None = None
    batch: float | None = None
    update: float | None = None
    bound: Literal["compute", "link"] | None = None
    assumptions: tuple[str, ...] = ()


class Plan(_Frozen):
    """Everything that a rank needs to know, and everything that two runs are compared by."""

    version: int = VERSION
    experiment: str  # digest of what is trained
    setup: str  # digest of where and how
    arithmetic: Arithmetic
    comm: Comm
    memory: Memory
    seconds: Seconds | None = None  # not predicted, or not predictable
    notes: tuple[str, ...]  # what this setup cannot keep the same
    data: str | None = None  # fingerprint of the training items, once they are loaded
    draws: bool | None = None  # whether the model draws random numbers in training, once the first window has shown it
    halved: tuple[
        tuple[int, int], ...
    ] = ()  # (update, per_device): from where on micro-batches were smaller, for want of memory
    disturb: bool = False  # a twin: every weight starts one unit in its last place away from where it would
    config: Config

    def to_json(self) -> str:
        return self.model_dump_json(indent=2, by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls.model_validate_json(text)

    def with_sizes(self, sizes: Sizes, data: str | None = None, notes: tuple[str, ...] = ()) -> Plan:
        """The same plan once the task is loaded. Raises ConfigError where the data makes no full window."""
        arithmetic = _arithmetic(self.config, sizes)
        update = {
            "arithmetic": arithmetic,
            "comm": _comm(self.config, arithmetic, sizes),
            "data": data,
            "notes": self.notes + notes,
        }
        return self.model_copy(update=update)

    @property
    def repeats(self) -> bool:
        """Whether a window that runs out of memory is repeated. A sharded model's processes meet inside every forward
        and backward, where those that wait could not be told."""
        return self.config.batch.mode is BatchMode.auto_memory and not self.config.hardware.sharded

    def windows(self) -> Windows:
        """All windows of the run. Needs the sizes."""
        a, c = self.arithmetic, self.config
        assert a.items is not None and a.updates is not None, "the plan has no sizes yet"
        return Windows(a.items, a.per_device, a.accum, a.observed, a.updates, c.batch.remainder, c.data.shuffle, c.seed)


def make_plan(config: Config, sizes: Sizes | None = None) -> Plan:
    """The plan of a checked configuration. Raises ConfigError with every problem between its fields."""
    problems = list(unmet(config))
    if problems:
        raise ConfigError(problems)
    arithmetic = _arithmetic(config, sizes)
    experiment, setup = _digests(config, arithmetic)
    return Plan(
        experiment=experiment,
        setup=setup,
        arithmetic=arithmetic,
        comm=_comm(config, arithmetic, sizes),
        memory=Memory(peak_bytes=None),
        notes=tuple(notes_on(config)),
        config=config,
    )


def _arithmetic(config: Config, sizes: Sizes | None) -> Arithmetic:
    batch, processes, accum = config.batch, config.hardware.processes, config.accum
    if batch.mode is BatchMode.per_device:
        observed, per_device = batch.size * processes * accum, batch.size
    elif batch.mode is BatchMode.observed:
        observed, per_device = batch.size, batch.size // (processes * accum)
    else:
        most = batch.size // processes  # of auto_memory, until it is chosen
        observed, per_device = batch.size, batch.per_device or most
        accum = batch.size // (processes * per_device)
    items = sizes.items if sizes else None
    per_epoch = windows_per_epoch(items, observed, batch.remainder) if items is not None else None
    if per_epoch == 0:
        raise ConfigError([_no_window(items or 0, observed, batch.remainder)])
    updates = config.budget.updates
    if updates is None and per_epoch is not None and config.budget.epochs is not None:
        updates = per_epoch * config.budget.epochs
    if updates is not None and (late := list(warm_up(config, updates))):
        raise ConfigError(late)
    factor = {ScalingRule.none: 1.0}.get(config.lr_scaling.rule)
    if factor is None:
        ratio = observed / (config.lr_scaling.reference or observed)
        factor = ratio if config.lr_scaling.rule is ScalingRule.linear else sqrt(ratio)
    return Arithmetic(
        observed=observed,
        per_device=per_device,
        accum=accum,
        processes=processes,
        nodes=config.hardware.nodes,
        items=items,
        updates_per_epoch=per_epoch,
        updates=updates,
        lr=config.optim.lr * factor,
    )


def _no_window(items: int, observed: int, remainder: Remainder) -> Problem:
    if items == 0:
        return Problem("task", "the training data is empty")
    what = f"batch.remainder={remainder.value} leaves no window: {counted(items, 'item')} {'is' if items == 1 else 'are'} less than the observed batch of {observed}"
    return Problem("batch.remainder", what, "Use batch.remainder=keep, or a smaller batch")


def _comm(config: Config, arithmetic: Arithmetic, sizes: Sizes | None) -> Comm:
    """Predicted, for the measured counts to be held against. One process sends nothing.

    What a sharded model sends depends on how it is made; only the model itself can tell.
    """
    if arithmetic.processes == 1:
        return Comm(reductions=0, collectives=0, bytes=0)
    policy, name = config.sync.policy, config.compress.name
    once = policy.reduces_once or policy is SyncPolicy.local_sgd
    if config.hardware.sharded:  # which decides in the backward, so the context around that alone is in time
        once = once or policy is SyncPolicy.backward_only
    reductions = 1 if once else arithmetic.accum
    if config.hardware.sharded:
        return Comm(reductions=reductions, collectives=None, bytes=None)
    element = 8 if config.precision.name is PrecisionName.fp64 else 4
    gradient = (sizes.parameters + CARRIER_ELEMENTS) * element if sizes else None
    votes = int(config.batch.mode is BatchMode.auto_memory)  # on whether a process ran out of memory
    if config.seeding.mode is SeedingMode.bitwise or config.precision.weights is not None:
        if gradient is None:
            return Comm(reductions=1, collectives=None, bytes=None, bucket_bytes=TREE_BUCKET_BYTES)
        bitwise = config.seeding.mode is SeedingMode.bitwise
        levels = arithmetic.processes.bit_length() - 1 if bitwise else 1  # of exchanges with a neighbour
        return Comm(
            reductions=1,
            collectives=-(-gradient // TREE_BUCKET_BYTES) + votes,
            bytes=levels * gradient + votes * VOTE_BYTES,
            bucket_bytes=TREE_BUCKET_BYTES,
        )
    chooses = policy in (SyncPolicy.accumulate, SyncPolicy.local_sgd)  # the others are kept as torch does them
    link = config.link if chooses else None
    bucket = bucket_bytes(gradient, arithmetic.nodes, link, config.sync.bucket_mb)
    if gradient is None or bucket is None or policy is SyncPolicy.local_sgd or name is CompressName.powersgd:
        return Comm(reductions=reductions, collectives=None, bytes=None, bucket_bytes=bucket)
    collectives, size = -(-gradient // bucket), gradient
    if name is not CompressName.none:  # the window's total and weight travel by themselves, in full
        collectives, size = collectives + 1, gradient // element * 2 + CARRIER_ELEMENTS * element
    return Comm(
        reductions=reductions,
        collectives=reductions * collectives + votes,
        bytes=reductions * size + votes * VOTE_BYTES,
        bucket_bytes=bucket,
    )


def _digests(config: Config, arithmetic: Arithmetic) -> tuple[str, str]:
    return _digest(experiment_of(config, arithmetic)), _digest(setup_of(config, arithmetic))


def experiment_of(config: Config, arithmetic: Arithmetic) -> dict[str, Any]:
    """What is trained: the results of the arithmetic (observed batch, scaled learning rate), not the ways that lead there."""
    values = config.model_dump(mode="json", by_alias=True)
    experiment = {k: values[k] for k in ("task", "schedule", "budget", "seed", "nonfinite", "early_stop")}
    experiment["optim"] = {**values["optim"], "lr": arithmetic.lr}
    experiment["observed"] = arithmetic.observed
    experiment["remainder"] = values["batch"]["remainder"]
    experiment["shuffle"] = values["data"]["shuffle"]
    if config.early_stop.metric is not None:
        experiment["eval"] = values["eval"]
    return experiment


def setup_of(config: Config, arithmetic: Arithmetic) -> dict[str, Any]:
    """Where and how it is trained."""
    values = config.model_dump(mode="json", by_alias=True)
    setup = {k: values[k] for k in ("hardware", "sync", "compress", "precision", "seeding", "link", "compile")}
    setup["activation_checkpoint"] = config.activation_checkpoint
    setup["per_device"], setup["accum"] = arithmetic.per_device, arithmetic.accum
    return setup


def _digest(value: dict[str, Any]) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
