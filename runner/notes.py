"""What a setup cannot keep the same, and what it changes on purpose: said in the plan, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from runner.choices import CompressName, PrecisionName, Remainder, SeedingMode, SyncPolicy
from runner.counts import counted
from runner.schema import Config


def notes_on(config: Config) -> Iterator[str]:
    """The notes of a configuration."""
    if config.seeding.mode.value == "fast":
        yield "seeding=fast: dropout and augmentation draw from a stream of each process, so they differ between setups"
    if config.seeding.mode is SeedingMode.bitwise:
        threads = config.hardware.threads or 1
        yield f"seeding=bitwise: every bit is the same among runs with the same threads per process (here {threads}), versions and kind of processor"
    link = config.link
    if link.chosen and config.hardware.nodes == 1:
        yield f"link={link.name}: all processes are on one node, so nothing passes through the link"
    elif link.chosen and link.simulate:
        yield f"link={link.name} is simulated: gradients arrive as late as it would bring them; nothing else is slowed"
    yield from _policy_notes(config)
    if config.batch.remainder is Remainder.drop:
        yield "batch.remainder=drop: the items of an epoch's last, short window are left out; which ones depends on the order"
    if config.batch.remainder is Remainder.pad:
        yield "batch.remainder=pad: an epoch's last window is filled with items from the epoch's start, which are seen twice"
    if config.precision.weights is not None:
        yield "precision.weights=bf16: updates below 1/256 of a weight are lost to rounding; the outcome may differ"
    if config.precision.name is PrecisionName.bf16:
        yield "precision=bf16: losses of single batches differ from fp32 by about 1%; the outcome should not"


def _policy_notes(config: Config) -> Iterator[str]:
    """Policies that change the mathematics, each by its name."""
    name, sync = config.compress.name, config.sync
    if config.hardware.processes == 1:
        if name is not CompressName.none or sync.policy is SyncPolicy.local_sgd:
            what = f"compress={name.value}" if name is not CompressName.none else f"sync={sync.policy.value}"
            yield f"{what} changes nothing here: one process sends nothing"
        return
    if name in (CompressName.bf16, CompressName.fp16):
        yield f"compress={name.value} changes the gradients: each process's share is rounded to {name.value}, and summed in it"
    if name is CompressName.powersgd:
        yield (
            f"compress=powersgd changes the gradients: {_from(config.compress.start)}matrices are sent at rank {config.compress.rank}, "
            "and what is lost is added to the next gradient"
        )
    if sync.policy is SyncPolicy.local_sgd and sync.every is not None:
        yield (
            f"sync=local_sgd changes the updates: {_from(sync.start)}every process makes its own, and the weights are averaged every "
            f"{counted(sync.every, 'update')}; grad_norm is then the root mean square of the processes' own"
        )


def _from(start: int | None) -> str:
    return f"from update {start + 1} on " if start else ""
