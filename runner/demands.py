"""What choices demand of each other: pairs that cannot be, sizes that do not divide, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from runner.choices import (
    BatchMode,
    Device,
    Parallel,
    PrecisionName,
    ScalingRule,
    SeedingMode,
    SyncPolicy,
)
from runner.counts import counted
from runner.endpoint import endpoint
from runner.errors import Problem
from runner.policy_demands import unmet_by_policies
from runner.schema import Config


def unmet(config: Config) -> Iterator[Problem]:
    """Everything that no single field can tell."""
    hardware, budget = config.hardware, config.budget
    if budget.epochs is None and budget.updates is None:
        yield Problem("budget", "neither epochs nor updates are set", "Set budget.epochs=10 or budget.updates=1000")
    if hardware.processes % hardware.nodes:
        what = f"{counted(hardware.processes, 'process')} cannot be spread evenly over {hardware.nodes} nodes"
        yield Problem("hardware.processes", what, f"Set a multiple: hardware.processes={2 * hardware.nodes}")
    yield from _sharding(config)
    yield from _meeting(config)
    yield from _link(config)
    if config.lr_scaling.rule is not ScalingRule.none and config.lr_scaling.reference is None:
        what = f"lr_scaling={config.lr_scaling.rule.value} needs the observed batch that optim.lr was chosen for"
        yield Problem("lr_scaling.reference", what, "Set lr_scaling.reference=64, say")
    if config.optim.name == "sgd" and config.optim.nesterov and not config.optim.momentum:
        yield Problem("optim.nesterov", "true needs a momentum", "Set optim.momentum=0.9")
    if budget.updates is not None:
        yield from warm_up(config, budget.updates)
    if config.early_stop.metric is not None and config.eval.every is None:
        what = f"{config.early_stop.metric} is looked at after evaluations, and eval.every is not set"
        yield Problem("early_stop.metric", what, "Set eval.every=1epoch, say")
    yield from _of_precision(config)
    yield from unmet_by_policies(config)
    if config.seeding.mode is SeedingMode.bitwise:
        yield from _of_bitwise(config)
    if config.batch.mode is BatchMode.auto_memory:
        yield from _of_chosen_size(config)
    yield from _divisibility(config)


def _of_chosen_size(config: Config) -> Iterator[Problem]:
    """A micro-batch that is chosen by the memory, and halved where that runs out."""
    hardware, policy = config.hardware, config.sync.policy
    if config.seeding.mode is SeedingMode.bitwise:
        what = "seeding=bitwise holds for one per_device, and batch=auto_memory takes what the machine has room for"
        yield Problem("batch", what, "Use batch=auto batch.per_device=8, say")
    if hardware.device is Device.xla:
        yield Problem("batch", "auto_memory cannot ask a TPU for its memory", "Use batch=auto batch.per_device=8, say")
    if not hardware.sharded and hardware.processes > 1 and policy in (SyncPolicy.every_batch, SyncPolicy.backward_only):
        what = f"batch=auto_memory repeats windows that ran out of memory, and under {policy.value} parts of them were sent"
        yield Problem("sync", what, "Use sync=accumulate")


def _of_precision(config: Config) -> Iterator[Problem]:
    name, device = config.precision.name, config.hardware.device
    if name is PrecisionName.tf32 and device is not Device.cuda:
        yield Problem("precision", f"tf32 is a format of NVIDIA GPUs, not of {device.value}", "Use precision=fp32")
    if config.compile and config.hardware.sharded:
        yield Problem("compile", f"true is not for {config.hardware.parallel.value} yet", "Use hardware.parallel=ddp")
    if name is PrecisionName.fp16 and device is Device.xla:
        yield Problem("precision", "fp16 is no format of TPUs", "Use precision=bf16")
    if config.precision.weights is not None:
        yield from _of_low_weights(config)
    for key in ("scale", "growth_interval"):
        given = getattr(config.precision, key)
        if name is PrecisionName.fp16 and given is None:
            yield Problem(f"precision.{key}", "fp16 needs one", f"Set precision.{key}=1024")
        elif name is not PrecisionName.fp16 and given is not None:
            yield Problem(
                f"precision.{key}", f"{given:g} has no effect under precision={name.value}", "Use precision=fp16"
            )


def _of_low_weights(config: Config) -> Iterator[Problem]:
    """Their gradients are summed beside them, in fp32."""
    name, policy = config.precision.name, config.sync.policy
    if name is not PrecisionName.bf16:
        what = f"bf16 weights cannot be computed with in {name.value}"
        yield Problem("precision.weights", what, "Use precision=bf16 precision.weights=bf16")
    if policy is not SyncPolicy.accumulate and not config.hardware.sharded:
        what = (
            f"precision.weights=bf16 sums a window's gradients before they are reduced, which {policy.value} does not"
        )
        yield Problem("sync", what, "Use sync=accumulate")


def _of_bitwise(config: Config) -> Iterator[Problem]:
    """Equality to the last bit needs one order of every sum, whatever the processes."""
    hardware, policy = config.hardware, config.sync.policy
    count = hardware.processes
    if count & (count - 1):
        down = 1 << (count.bit_length() - 1)
        what = f"seeding=bitwise adds the processes' sums in pairs, and {count} is no power of two"
        yield Problem("hardware.processes", what, f"Use {down} or {2 * down} processes, or seeding=exact")
    if policy is not SyncPolicy.accumulate:
        what = f"seeding=bitwise adds micro-batches in one fixed order, which {policy.value} is not"
        yield Problem("sync", what, "Use sync=accumulate, or seeding=exact")
    if hardware.device is Device.xla:
        what = "XLA chooses the order of its sums itself, so seeding=bitwise cannot hold there"
        yield Problem("seeding", what, "Use seeding=exact")
    parallel: str = hardware.parallel.value
    if parallel != "ddp":
        what = f"seeding=bitwise needs every gradient whole on every process; {parallel} shards them"
        yield Problem("hardware.parallel", what, "Use hardware.parallel=ddp, or seeding=exact")


def warm_up(config: Config, updates: int) -> Iterator[Problem]:
    """A warm-up that is longer than a run of so many updates."""
    if config.schedule.warmup > updates:
        what = f"{config.schedule.warmup} updates of warm-up are more than the {updates} of the run"
        yield Problem("schedule.warmup", what, f"Choose at most {updates}")


def _meeting(config: Config) -> Iterator[Problem]:
    """Where several machines meet."""
    where, nodes = config.rendezvous, config.hardware.nodes
    if where is not None and endpoint(where) is None:
        yield Problem("rendezvous", f"'{where}' is no HOST:PORT", "Type rendezvous=10.0.0.5:29400, say")
    if where is not None and config.launch.name == "slurm":
        yield Problem(
            "rendezvous", f"{where} has no effect under launch=slurm, where nodes find each other", "Leave it out"
        )
    elif where is not None and nodes == 1:
        what = f"{where} has no effect on one node"
        yield Problem("rendezvous", what, "Set hardware.nodes=2, or leave it out", ("node", "hardware"))


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


def _link(config: Config) -> Iterator[Problem]:
    """What a link is for, and what it takes."""
    link, hardware = config.link, config.hardware
    if not link.chosen:
        for key in ("rate", "delay", "jitter", "loss", "simulate"):
            if value := getattr(link, key):
                shown = str(value).lower() if isinstance(value, bool) else f"{value:g}"
                what = f"{shown} has no effect under link=none"
                yield Problem(f"link.{key}", what, "Use link=350mbit, or link=custom link.rate=200", ("link",))
        return
    if config.rendezvous is not None:
        what = f"link={link.name} makes nodes of this machine, and rendezvous={config.rendezvous} has others join"
        yield Problem("link", what, "Leave out one of the two")
    if link.rate is None:
        yield Problem("link.rate", f"link={link.name} has no rate", "Set link.rate=200 (Mbit/s), say")
    if not link.simulate:
        return
    if link.loss:
        what = f"{link.loss:g}% of the frames cannot be lost where none are sent"
        yield Problem("link.loss", what, "Set link.loss=0, or link.simulate=false")
    other = f"hardware.parallel={hardware.parallel.value}" if hardware.sharded else ""
    other = other or ("seeding=bitwise" if config.seeding.mode is SeedingMode.bitwise else "")
    other = other or (f"precision.weights={config.precision.weights.value}" if config.precision.weights else "")
    if other:
        what = f"true makes DDP's reductions late, and {other} makes none"
        yield Problem("link.simulate", what, f"Use link.simulate=false, or leave {other} out")


def _divisibility(config: Config) -> Iterator[Problem]:
    batch, processes = config.batch, config.hardware.processes
    if batch.mode is BatchMode.auto and batch.per_device is None:
        yield Problem(
            "batch.per_device", "batch=auto derives accum from it, and it is not set", "Set batch.per_device=8"
        )
        return
    if not batch.derives_accum and batch.per_device is not None:
        what = f"{batch.per_device} has no effect under batch={batch.mode.value}"
        yield Problem(
            "batch.per_device",
            what,
            f"Use batch=auto or, for a fixed micro-batch, batch=per_device batch.size={batch.per_device}",
        )
    if batch.mode is BatchMode.per_device:
        return
    if batch.mode is BatchMode.observed:
        unit, names = processes * config.accum, f"{counted(processes, 'process')} x accum {config.accum}"
    elif batch.per_device is not None:
        unit, names = processes * batch.per_device, f"{counted(processes, 'process')} x per_device {batch.per_device}"
    else:
        unit, names = processes, counted(processes, "process")
    if batch.size % unit:
        down = batch.size // unit * unit
        near = " or ".join(f"batch.size={n}" for n in (down, down + unit) if n)
        what = f"{batch.size} cannot be divided by {names} = {unit}"
        yield Problem("batch.size", what, f"The nearest that can: {near}", ("hardware",))
    elif batch.derives_accum and config.accum != 1 and (batch.per_device is None or config.accum != batch.size // unit):
        derived = "it" if batch.per_device is None else f"{batch.size // unit} for {names}"
        what = f"{config.accum} was given, but batch={batch.mode.value} derives {derived}"
        yield Problem("accum", what, "Leave accum out, or use batch=observed")
