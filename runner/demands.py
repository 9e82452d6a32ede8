"""What a choice of seeding or precision demands of the other choices: pairs that cannot be, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from runner.errors import Problem
from runner.schema import Config, Device, PrecisionName, SeedingMode, SyncPolicy


def unmet(config: Config) -> Iterator[Problem]:
    """The problems between seeding, precision and the rest of a configuration."""
    yield from _of_precision(config)
    if config.seeding.mode is SeedingMode.bitwise:
        yield from _of_bitwise(config)


def _of_precision(config: Config) -> Iterator[Problem]:
    name, device = config.precision.name, config.hardware.device
    if name is PrecisionName.tf32 and device is not Device.cuda:
        yield Problem("precision", f"tf32 is a format of NVIDIA GPUs, not of {device.value}", "Use precision=fp32")
    if name is PrecisionName.fp16 and config.hardware.sharded:
        what = f"fp16 under {config.hardware.parallel.value} would look for overflows in each process's share alone"
        yield Problem("precision", what, "Use precision=bf16, or hardware.parallel=ddp")
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
    if policy is not SyncPolicy.accumulate:
        what = (
            f"precision.weights=bf16 sums a window's gradients before they are reduced, which {policy.value} does not"
        )
        yield Problem("sync", what, "Use sync=accumulate")
    parallel: str = config.hardware.parallel.value
    if parallel != "ddp":
        what = f"precision.weights=bf16 needs every gradient whole on every process; {parallel} shards them"
        yield Problem("hardware.parallel", what, "Use hardware.parallel=ddp, or precision.weights=null")


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
