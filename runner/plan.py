"""Experiment x setup -> one frozen plan: the arithmetic of a run, checked before anything starts.

`make_plan` is pure: no torch, no files, no processes. What is only known once the data and the model are
there (items, parameters) is None until `Plan.with_sizes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from math import sqrt
from typing import Any

from pydantic import BaseModel, ConfigDict

from runner.demands import unmet
from runner.errors import ConfigError, Problem
from runner.schema import (
    BatchMode,
    Config,
    Device,
    Parallel,
    PrecisionName,
    Remainder,
    ScalingRule,
    SeedingMode,
    SyncPolicy,
)
from runner.window import Windows, windows_per_epoch

VERSION = 1
CARRIER_ELEMENTS = 2  # the window's loss total and weight, which travel with the gradient
BUCKET_BYTES = 25 * 2**20
TREE_BUCKET_BYTES = 2**20  # of seeding=bitwise and precision.weights=bf16


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sizes(_Frozen):
    """What a task holds: training items, and the elements of its gradient."""

    items: int
    parameters: int


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

    Bytes are those that one process hands to the reduction. None where the model is not known yet.
    """

    reductions: int
    collectives: int | None
    bytes: int | None


class Memory(_Frozen):
    """Peak memory of one device in bytes; None: not predicted. `parts` is what it is made of, `capacity` what a device
    has, where that is known."""

    peak_bytes: int | None
    parts: dict[str, int] = {}
    capacity: int | None = None
    assumptions: tuple[str, ...] = ()
    advice: str | None = None  # where it does not fit: what would


class Plan(_Frozen):
    """Everything that a rank needs to know, and everything that two runs are compared by."""

    version: int = VERSION
    experiment: str  # digest of what is trained
    setup: str  # digest of where and how
    arithmetic: Arithmetic
    comm: Comm
    memory: Memory
    notes: tuple[str, ...]  # what this setup cannot keep the same
    data: str | None = None  # fingerprint of the training items, once they are loaded
    draws: bool | None = None  # whether the model draws random numbers in training, once the first window has shown it
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

    def windows(self) -> Windows:
        """All windows of the run. Needs the sizes."""
        a, c = self.arithmetic, self.config
        assert a.items is not None and a.updates is not None, "the plan has no sizes yet"
        return Windows(a.items, a.per_device, a.accum, a.observed, a.updates, c.batch.remainder, c.data.shuffle, c.seed)


def make_plan(config: Config, sizes: Sizes | None = None) -> Plan:
    """The plan of a checked configuration. Raises ConfigError with every problem between its fields."""
    problems = list(_cross_field(config))
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
        notes=tuple(_notes(config)),
        config=config,
    )


def _cross_field(config: Config) -> Iterator[Problem]:
    """Everything that no single field can tell."""
    hardware, budget = config.hardware, config.budget
    if budget.epochs is None and budget.updates is None:
        yield Problem("budget", "neither epochs nor updates are set", "Set budget.epochs=10 or budget.updates=1000")
    if hardware.processes % hardware.nodes:
        what = f"{hardware.processes} processes cannot be spread evenly over {hardware.nodes} nodes"
        yield Problem("hardware.processes", what, f"Set a multiple: hardware.processes={2 * hardware.nodes}")
    yield from _sharding(config)
    if config.lr_scaling.rule is not ScalingRule.none and config.lr_scaling.reference is None:
        what = f"lr_scaling={config.lr_scaling.rule.value} needs the observed batch that optim.lr was chosen for"
        yield Problem("lr_scaling.reference", what, "Set lr_scaling.reference=64, say")
    if config.optim.name == "sgd" and config.optim.nesterov and not config.optim.momentum:
        yield Problem("optim.nesterov", "true needs a momentum", "Set optim.momentum=0.9")
    if budget.updates is not None:
        yield from _warmup(config, budget.updates)
    if config.early_stop.metric is not None and config.eval.every is None:
        what = f"{config.early_stop.metric} is looked at after evaluations, and eval.every is not set"
        yield Problem("early_stop.metric", what, "Set eval.every=1epoch, say")
    yield from unmet(config)
    yield from _divisibility(config)


def _warmup(config: Config, updates: int) -> Iterator[Problem]:
    if config.schedule.warmup > updates:
        what = f"{config.schedule.warmup} updates of warm-up are more than the {updates} of the run"
        yield Problem("schedule.warmup", what, f"Choose at most {updates}")


def _sharding(config: Config) -> Iterator[Problem]:
    """What sharding asks of the hardware, and what is asked of it."""
    hardware, policy = config.hardware, config.sync.policy
    hybrid, size, shard = hardware.parallel is Parallel.hsdp, hardware.processes, hardware.shard
    if policy is SyncPolicy.accumulate_local and not hybrid:
        what = f"accumulate_local reduces inside a copy of the model and between copies, and {hardware.parallel.value} has no copies to tell apart"
        yield Problem("sync", what, "Use hardware.parallel=hsdp, or sync=accumulate")
    if shard is not None and not hybrid:
        yield Problem(
            "hardware.shard", f"{shard} has no effect under {hardware.parallel.value}", "Use hardware.parallel=hsdp"
        )
    if hybrid and size > 1 and not size % hardware.nodes:
        here = hardware.copy_size
        fits = [n for n in range(2, size) if size % n == 0]
        if here not in fits:
            what = f"hsdp spreads each copy of the model over some of the {size} processes, and {here} is not such a number"
            choices = " or ".join(f"hardware.shard={n}" for n in fits)
            yield Problem("hardware.shard", what, f"Set {choices}" if fits else "Use hardware.parallel=fsdp")
    if hardware.sharded and hardware.device is Device.xla:
        yield Problem("hardware.parallel", "fsdp and hsdp are not for xla", "Use hardware.parallel=ddp")


def _divisibility(config: Config) -> Iterator[Problem]:
    batch, processes = config.batch, config.hardware.processes
    if batch.mode is BatchMode.auto and batch.per_device is None:
        yield Problem(
            "batch.per_device", "batch=auto derives accum from it, and it is not set", "Set batch.per_device=8"
        )
        return
    if batch.mode is not BatchMode.auto and batch.per_device is not None:
        what = f"{batch.per_device} has no effect under batch={batch.mode.value}"
        yield Problem(
            "batch.per_device",
            what,
            f"Use batch=auto or, for a fixed micro-batch, batch=per_device batch.size={batch.per_device}",
        )
    if batch.mode is BatchMode.per_device:
        return
    if batch.mode is BatchMode.observed:
        unit, names = processes * config.accum, f"{_count(processes, 'process')} x accum {config.accum}"
    else:
        assert batch.per_device is not None
        unit, names = processes * batch.per_device, f"{_count(processes, 'process')} x per_device {batch.per_device}"
    if batch.size % unit:
        down = batch.size // unit * unit
        near = " or ".join(f"batch.size={n}" for n in (down, down + unit) if n)
        yield Problem(
            "batch.size", f"{batch.size} cannot be divided by {names} = {unit}", f"The nearest that can: {near}"
        )
    elif batch.mode is BatchMode.auto and config.accum not in (1, batch.size // unit):
        what = f"{config.accum} was given, but batch=auto derives {batch.size // unit} for {names}"
        yield Problem("accum", what, "Leave accum out, or use batch=observed")


def _arithmetic(config: Config, sizes: Sizes | None) -> Arithmetic:
    batch, processes, accum = config.batch, config.hardware.processes, config.accum
    if batch.mode is BatchMode.per_device:
        observed, per_device = batch.size * processes * accum, batch.size
    elif batch.mode is BatchMode.observed:
        observed, per_device = batch.size, batch.size // (processes * accum)
    else:
        assert batch.per_device is not None
        observed, per_device = batch.size, batch.per_device
        accum = batch.size // (processes * per_device)
    items = sizes.items if sizes else None
    per_epoch = windows_per_epoch(items, observed, batch.remainder) if items is not None else None
    if per_epoch == 0:
        raise ConfigError([_no_window(items or 0, observed, batch.remainder)])
    updates = config.budget.updates
    if updates is None and per_epoch is not None and config.budget.epochs is not None:
        updates = per_epoch * config.budget.epochs
    if updates is not None and (late := list(_warmup(config, updates))):
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
    what = f"batch.remainder={remainder.value} leaves no window: {items} items are less than the observed batch of {observed}"
    return Problem("batch.remainder", what, "Use batch.remainder=keep, or a smaller batch")


def _comm(config: Config, arithmetic: Arithmetic, sizes: Sizes | None) -> Comm:
    """Predicted, for the measured counts to be held against. One process sends nothing.

    What a sharded model sends depends on how it is made; only the model itself can tell.
    """
    if arithmetic.processes == 1:
        return Comm(reductions=0, collectives=0, bytes=0)
    once = config.sync.policy in (SyncPolicy.accumulate, SyncPolicy.no_sync)
    if config.hardware.sharded:  # which decides in the backward, so the context around that alone is in time
        once = once or config.sync.policy is SyncPolicy.backward_only
    reductions = 1 if once else arithmetic.accum
    if sizes is None or config.hardware.sharded:
        return Comm(reductions=reductions, collectives=None, bytes=None)
    element = 8 if config.precision.name is PrecisionName.fp64 else 4
    gradient = (sizes.parameters + CARRIER_ELEMENTS) * element
    bitwise = config.seeding.mode is SeedingMode.bitwise
    if bitwise or config.precision.weights is not None:
        levels = arithmetic.processes.bit_length() - 1 if bitwise else 1  # of exchanges with a neighbour
        return Comm(reductions=1, collectives=-(-gradient // TREE_BUCKET_BYTES), bytes=levels * gradient)
    buckets = -(-gradient // BUCKET_BYTES)
    return Comm(reductions=reductions, collectives=reductions * buckets, bytes=reductions * gradient)


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
    setup = {k: values[k] for k in ("hardware", "sync", "precision", "seeding", "link", "compile")}
    setup["activation_checkpoint"] = config.activation_checkpoint
    setup["per_device"], setup["accum"] = arithmetic.per_device, arithmetic.accum
    return setup


def _digest(value: dict[str, Any]) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _notes(config: Config) -> Iterator[str]:
    if config.seeding.mode.value == "fast":
        yield "seeding=fast: dropout and augmentation draw from a stream of each process, so they differ between setups"
    if config.seeding.mode is SeedingMode.bitwise:
        threads = config.hardware.threads or 1
        yield f"seeding=bitwise: every bit is the same among runs with the same threads per process (here {threads}), versions and kind of processor"
    if config.batch.remainder is Remainder.drop:
        yield "batch.remainder=drop: the items of an epoch's last, short window are left out; which ones depends on the order"
    if config.batch.remainder is Remainder.pad:
        yield "batch.remainder=pad: an epoch's last window is filled with items from the epoch's start, which are seen twice"
    if config.precision.weights is not None:
        yield "precision.weights=bf16: updates below 1/256 of a weight are lost to rounding; the outcome may differ"
    if config.precision.name is PrecisionName.bf16:
        yield "precision=bf16: losses of single batches differ from fp32 by about 1%; the outcome should not"


def _count(n: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{n} {noun if n == 1 else plural}"
