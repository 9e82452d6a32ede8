"""What compressed gradients, local updates and buckets of a given size cannot be joined with, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from runner.choices import BatchMode, CompressName, Parallel, PrecisionName, SeedingMode, SyncPolicy
from runner.errors import Problem
from runner.schema import Config


def unmet_by_policies(config: Config) -> Iterator[Problem]:
    """Everything that the sync policy and `compress` ask of the rest."""
    yield from _of_local_updates(config)
    yield from _of_compression(config)
    if config.sync.bucket_mb is not None:
        yield from _of_buckets(config)


def _of_local_updates(config: Config) -> Iterator[Problem]:
    """sync=local_sgd: its own keys, and what it cannot be joined with."""
    sync, wanted = config.sync, config.sync.policy is SyncPolicy.local_sgd
    for key, example in (("every", 4), ("start", 0)):
        given = getattr(sync, key)
        if wanted and given is None:
            yield Problem(f"sync.{key}", "local_sgd needs one", f"Set sync.{key}={example}")
        elif not wanted and given is not None:
            what = f"{given} has no effect under sync={sync.policy.value}"
            yield Problem(f"sync.{key}", what, "Use sync=local_sgd")
    if not wanted:
        return
    if config.hardware.parallel is not Parallel.ddp:
        what = f"local_sgd needs a whole model on every process; {config.hardware.parallel.value} shards it"
        yield Problem("sync", what, "Use hardware.parallel=ddp, or sync=accumulate")
    if config.precision.name is PrecisionName.fp16:
        what = "fp16 would look for overflows in each process's own gradient, and local_sgd does not share them"
        yield Problem("precision", what, "Use precision=bf16, or sync=accumulate")
    if config.batch.mode is BatchMode.auto_memory:
        what = "batch=auto_memory repeats a window on all processes, and under local_sgd each goes its own way"
        yield Problem("sync", what, "Use sync=accumulate, or batch=auto batch.per_device=8, say")
    if config.compress.name is not CompressName.none:
        what = f"{config.compress.name.value} compresses a window's gradient, and local_sgd sends weights"
        yield Problem("compress", what, "Use compress=none, or sync=accumulate")


def _of_buckets(config: Config) -> Iterator[Problem]:
    """sync.bucket_mb: only DDP has buckets that can be set."""
    other = config.hardware.parallel.value if config.hardware.parallel is not Parallel.ddp else ""
    other = other or ("seeding=bitwise" if config.seeding.mode is SeedingMode.bitwise else "")
    other = other or (f"precision.weights={config.precision.weights.value}" if config.precision.weights else "")
    other = other or ("compress=powersgd" if config.compress.name is CompressName.powersgd else "")
    if other:
        what = f"{config.sync.bucket_mb:g} has no effect under {other}, which divides the gradient itself"
        yield Problem("sync.bucket_mb", what, "Leave it out")


def _of_compression(config: Config) -> Iterator[Problem]:
    """compress=...: its own keys, and what it cannot be joined with."""
    compress, name, policy = config.compress, config.compress.name, config.sync.policy
    low_rank = name is CompressName.powersgd
    for key, example in (("rank", 4), ("start", 0)):
        given = getattr(compress, key)
        if low_rank and given is None:
            yield Problem(f"compress.{key}", "powersgd needs one", f"Set compress.{key}={example}")
        elif not low_rank and given is not None:
            what = f"{given} has no effect under compress={name.value}"
            yield Problem(f"compress.{key}", what, "Use compress=powersgd")
    if name is CompressName.none:
        return
    if not policy.reduces_once and policy is not SyncPolicy.local_sgd:  # which is named by its own demands
        what = f"{name.value} compresses a window's whole gradient, and {policy.value} reduces it in parts"
        yield Problem("compress", what, "Use sync=accumulate, or compress=none")
    if config.hardware.parallel is not Parallel.ddp:
        what = f"{name.value} is for whole gradients; {config.hardware.parallel.value} shards them"
        yield Problem("compress", what, "Use hardware.parallel=ddp, or compress=none")
    if config.seeding.mode is SeedingMode.bitwise:
        what = f"seeding=bitwise keeps every bit, and {name.value} drops some"
        yield Problem("compress", what, "Use compress=none, or seeding=exact")
    if config.precision.weights is not None:
        what = f"gradients of {config.precision.weights.value} weights are sent in fp32 only"
        yield Problem("compress", what, "Use compress=none, or precision.weights=null")
    if config.batch.mode is BatchMode.auto_memory:
        what = f"batch=auto_memory repeats windows that ran out of memory, and {name.value} has sent parts of them for good"
        yield Problem("compress", what, "Use compress=none, or batch=auto batch.per_device=8, say")
    if low_rank and config.precision.name is PrecisionName.fp16:
        what = "powersgd adds what one update lost to the next, and under fp16 the loss scale may change in between"
        yield Problem("compress", what, "Use precision=bf16, or compress=bf16")
