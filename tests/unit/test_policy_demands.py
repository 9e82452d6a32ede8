"""Compressed gradients and local updates before anything starts: what they cannot be joined with, what the plan says of them."""

from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.plan import Plan, Sizes
from tests.running import plan_of

# as values: Hydra need not compose each combination of choices
CHOICES = {
    "sync=local_sgd": ('sync.policy="local_sgd"', "sync.every=4", "sync.start=0"),
    "compress=powersgd": ('compress.name="powersgd"', "compress.rank=4", "compress.start=0"),
    "precision=fp16": ('precision.name="fp16"', "precision.scale=1024", "precision.growth_interval=9"),
}
LOCAL, LOW = ("sync=local_sgd",), ("compress=powersgd",)
TWO = ("hardware=2cpu", "batch.size=8")
SIZES = Sizes(items=100, parameters=1000)


def plan(*settings: str) -> Plan:
    values = [v for s in settings for v in CHOICES.get(s, (_as_value(s),))]
    return plan_of("Scalar", None, *values).with_sizes(SIZES)


def _as_value(setting: str) -> str:
    group, _, choice = setting.partition("=")
    inner = {"sync": "policy", "compress": "name", "precision": "name", "seeding": "mode", "batch": "mode"}.get(group)
    return f"{group}.{inner}={choice}" if inner else setting


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (("sync.every=3",), "sync.every", "has no effect under sync=accumulate"),
        ((*LOCAL, "sync.every=null"), "sync.every", "local_sgd needs one"),
        ((*LOCAL, "compress=bf16"), "compress", "local_sgd sends weights"),
        ((*LOCAL, "hardware.parallel=fsdp"), "sync", "whole model on every process"),
        ((*LOCAL, "precision=fp16"), "precision", "look for overflows"),
        ((*LOCAL, "seeding=bitwise"), "sync", "one fixed order"),
        (("compress=bf16", "compress.rank=2"), "compress.rank", "has no effect under compress=bf16"),
        ((*LOW, "compress.rank=null"), "compress.rank", "powersgd needs one"),
        ((*LOW, "sync=every_batch"), "compress", "reduces it in parts"),
        (("compress=bf16", "sync=backward_only"), "compress", "reduces it in parts"),
        (("compress=fp16", "seeding=bitwise"), "compress", "keeps every bit"),
        (("compress=bf16", "hardware.parallel=fsdp"), "compress", "shards them"),
        (("compress=bf16", "precision=bf16", "precision.weights=bf16"), "compress", "sent in fp32 only"),
        ((*LOW, "precision=fp16"), "compress", "the loss scale may change"),
        ((*LOCAL, "batch=auto_memory"), "sync", "repeats a window"),
        (("compress=bf16", "batch=auto_memory"), "compress", "sent parts of them"),
        (("sync.bucket_mb=4", "hardware.parallel=fsdp"), "sync.bucket_mb", "has no effect"),
        (("sync.bucket_mb=4", "seeding=bitwise"), "sync.bucket_mb", "has no effect"),
        ((*LOW, "sync.bucket_mb=4"), "sync.bucket_mb", "has no effect"),
    ],
)
def test_impossible(settings: tuple[str, ...], key: str, words: str) -> None:
    """One line, with the key that is wrong and what to do about it."""
    with pytest.raises(ConfigError) as error:
        plan(*TWO, *settings)
    (problem,) = error.value.problems
    assert problem.key == key
    assert words in str(problem)


@pytest.mark.parametrize(
    "settings",
    [LOCAL, LOW, ("compress=bf16",), ("compress=fp16", "precision=fp16", "sync=no_sync"), ("sync.bucket_mb=0.5",)],
)
def test_possible(settings: tuple[str, ...]) -> None:
    """The control."""
    assert plan(*TWO, *settings).comm.reductions == 1


@pytest.mark.parametrize("setting", ["sync=local_sgd", "compress=bf16", "compress=fp16", "compress=powersgd"])
def test_named_in_the_plan(setting: str) -> None:
    """As what changes the mathematics; with one process, as what changes nothing. Another setup of the same experiment."""
    (note,) = plan(*TWO, setting).notes
    assert setting in note
    assert "changes the" in note
    (note,) = plan("batch.size=8", setting).notes
    assert "changes nothing here" in note
    assert plan(*TWO, setting).setup != plan(*TWO).setup
    assert plan(*TWO, setting).experiment == plan(*TWO).experiment
    assert not plan(*TWO).notes


def test_sizes_of_buckets() -> None:
    """What is chosen for a link is in the plan, for accumulate alone; what is asked for holds for every policy."""
    slow = ("hardware=2node", "batch.size=8", "link=350mbit")
    sizes = Sizes(items=100, parameters=5_000_000)
    chosen = plan_of("Scalar", None, *slow).with_sizes(sizes).comm
    assert chosen.bucket_bytes == 512 * 2**10
    assert chosen.collectives == -(-20_000_008 // (512 * 2**10))
    assert plan_of("Scalar", None, *slow, "sync=no_sync").with_sizes(sizes).comm.bucket_bytes == 25 * 2**20
    assert (
        plan_of("Scalar", None, *slow, "sync=no_sync", "sync.bucket_mb=2").with_sizes(sizes).comm.bucket_bytes
        == 2 * 2**20
    )
