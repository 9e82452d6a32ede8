"""The plan's arithmetic: batches, updates, rates, what is sent, and what is refused before anything starts."""

from __future__ import annotations

from math import sqrt

import pytest

from runner.errors import ConfigError
from runner.launch.hardware import threads_of
from runner.plan import Plan, Sizes
from tests.running import plan_of

SIZES = Sizes(items=100, parameters=1000)


def plan(*settings: str) -> Plan:
    return plan_of("Scalar", None, *settings)


@pytest.mark.parametrize(
    ("settings", "observed", "per_device", "accum"),
    [
        (("batch=observed", "batch.size=64"), 64, 64, 1),
        (("batch=observed", "batch.size=64", "hardware=4cpu", "accum=2"), 64, 8, 2),
        (("batch=per_device", "batch.size=16"), 16, 16, 1),
        (("batch=per_device", "batch.size=16", "hardware=4cpu", "accum=2"), 128, 16, 2),
        (("batch=auto", "batch.size=64", "batch.per_device=8"), 64, 8, 8),
        (("batch=auto", "batch.size=64", "batch.per_device=8", "hardware=4cpu"), 64, 8, 2),
        (("batch=auto", "batch.size=64", "batch.per_device=8", "hardware=4cpu", "accum=2"), 64, 8, 2),
        (("batch=auto", "batch.size=64", "batch.per_device=8", "hardware=8cpu"), 64, 8, 1),
    ],
)
def test_batches(settings: tuple[str, ...], observed: int, per_device: int, accum: int) -> None:
    a = plan(*settings).arithmetic
    assert (a.observed, a.per_device, a.accum) == (observed, per_device, accum)
    assert a.observed == a.per_device * a.processes * a.accum


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (("batch.size=63", "hardware=2cpu", "accum=4"), ["63 cannot be divided by", "= 8", "batch.size=56 or batch.size=64"]),
        (("batch.size=3", "hardware=4cpu"), ["= 4", "The nearest that can: batch.size=4"]),
        (("batch=auto", "batch.size=60", "batch.per_device=8", "hardware=2cpu"), ["= 16", "batch.size=48 or batch.size=64"]),
        (("batch=auto", "batch.size=64", "batch.per_device=8", "accum=3"), ["batch=auto derives 8"]),
        (("batch=observed", "batch.size=64", "batch.per_device=8"), ["no effect under batch=observed", "batch=auto"]),
        (("budget.epochs=null",), ["neither epochs nor updates"]),
        (("schedule=linear", "schedule.warmup=9", "budget.updates=8"), ["9 updates of warm-up are more than the 8 of the run"]),
        (("optim.nesterov=true",), ["optim.nesterov", "optim.momentum=0.9"]),
        (("precision=tf32",), ["tf32", "precision=fp32"]),
        (("precision=fp16", "hardware=tpu8"), ["fp16", "TPU", "precision=bf16"]),
        (("precision=fp16", "precision.scale=null"), ["precision.scale", "fp16 needs one"]),
        (("precision.weights=bf16",), ["precision.weights", "fp32", "precision=bf16 precision.weights=bf16"]),
        (("precision=bf16", "precision.weights=bf16", "sync=no_sync"), ["no_sync", "sync=accumulate"]),
        (("precision.scale=1024",), ["1024 has no effect under precision=fp32", "precision=fp16"]),
    ],
)  # fmt: skip
def test_refusals_say_what_to_type(settings: tuple[str, ...], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        plan("batch.size=64", *settings)
    assert all(line in str(refused.value) for line in lines), str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_nearest_sizes_can_be_planned() -> None:
    """What a refusal offers is accepted: the control of the message."""
    for size in (56, 64):
        assert plan(f"batch.size={size}", "hardware=2cpu", "accum=4").arithmetic.per_device == size // 8


@pytest.mark.parametrize(
    ("remainder", "items", "per_epoch"),
    [("keep", 100, 4), ("pad", 100, 4), ("drop", 100, 3), ("keep", 96, 3), ("drop", 96, 3), ("keep", 1, 1)],
)
def test_updates_follow_the_items(remainder: str, items: int, per_epoch: int) -> None:
    made = plan("batch.size=32", f"batch.remainder={remainder}", "budget.epochs=5")
    assert made.arithmetic.updates is None
    sized = made.with_sizes(Sizes(items=items, parameters=1)).arithmetic
    assert (sized.updates_per_epoch, sized.updates) == (per_epoch, 5 * per_epoch)


def test_updates_win_over_epochs() -> None:
    made = plan("batch.size=32", "budget.epochs=5", "budget.updates=7")
    assert made.arithmetic.updates == made.with_sizes(SIZES).arithmetic.updates == 7


@pytest.mark.parametrize(("items", "words"), [(31, "31 items are less than the observed batch of 32"), (0, "empty")])
def test_no_window_at_all(items: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan("batch.size=32", "batch.remainder=drop").with_sizes(Sizes(items=items, parameters=1))


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
@pytest.mark.parametrize("split", [(), ("hardware=4cpu",), ("accum=8",)])
def test_scaled_rates(rule: str, factor: float, split: tuple[str, ...]) -> None:
    made = plan("batch.size=64", "optim.lr=0.1", f"lr_scaling={rule}", "lr_scaling.reference=16", *split)
    assert made.arithmetic.lr == pytest.approx(0.1 * factor)


def test_scaled_down() -> None:
    made = plan("batch.size=8", "optim.lr=0.1", "lr_scaling=sqrt", "lr_scaling.reference=16")
    assert made.arithmetic.lr == pytest.approx(0.1 * sqrt(0.5))


@pytest.mark.parametrize(
    ("policy", "reductions"), [("accumulate", 1), ("no_sync", 1), ("every_batch", 4), ("backward_only", 4)]
)
@pytest.mark.parametrize(("precision", "element"), [("fp32", 4), ("bf16", 4), ("fp64", 8)])
def test_what_is_sent(policy: str, reductions: int, precision: str, element: int) -> None:
    made = plan("batch.size=8", "hardware=2cpu", "accum=4", f"sync={policy}", f"precision={precision}").with_sizes(
        SIZES
    )
    assert (made.comm.reductions, made.comm.collectives) == (reductions, reductions)
    assert made.comm.bytes == reductions * 1002 * element, "the gradient, and the window's total and weight"


def test_one_process_sends_nothing() -> None:
    comm = plan("batch.size=8", "accum=4", "sync=every_batch").with_sizes(SIZES).comm
    assert (comm.reductions, comm.collectives, comm.bytes) == (0, 0, 0)


SAME = [
    ("hardware=4cpu",), ("accum=4",), ("sync=every_batch",), ("precision=fp64",), ("seeding=fast",), ("data.workers=2",),
    ("batch=auto", "batch.per_device=4"), ("batch=per_device", "batch.size=2", "hardware=8cpu", "accum=4"),
]  # fmt: skip
OTHER = [
    ("batch.size=128",), ("seed=1",), ("optim.lr=0.2",), ("optim=adam",), ("schedule=linear",), ("budget.epochs=2",),
    ("batch.remainder=drop",), ("data.shuffle=false",), ("nonfinite=skip",), ("lr_scaling=linear", "lr_scaling.reference=32"),
    ("optim.clip=1.0",),
]  # fmt: skip


@pytest.mark.parametrize("settings", SAME, ids="-".join)
def test_setups_of_one_experiment(settings: tuple[str, ...]) -> None:
    base, made = plan("batch.size=64"), plan("batch.size=64", *settings)
    assert made.experiment == base.experiment
    assert made.config != base.config


@pytest.mark.parametrize("settings", OTHER, ids="-".join)
def test_other_experiments(settings: tuple[str, ...]) -> None:
    base, made = plan("batch.size=64"), plan("batch.size=64", *settings)
    assert made.experiment != base.experiment


def test_a_scaled_rate_is_the_rate() -> None:
    """The experiment holds the rate that came out, not the way to it."""
    scaled = plan("batch.size=64", "optim.lr=0.1", "lr_scaling=linear", "lr_scaling.reference=32")
    assert scaled.experiment == plan("batch.size=64", "optim.lr=0.2").experiment


@pytest.mark.parametrize("optim", ["sgd", "adam", "adamw"])
def test_json_both_ways(optim: str) -> None:
    made = plan("batch.size=64", "schedule=cosine", f"optim={optim}").with_sizes(SIZES, "fingerprint", ("a note",))
    assert Plan.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (("hardware=3cpu", "batch.size=63"), ["3 is no power of two", "2 or 4 processes", "seeding=exact"]),
        (("hardware=2cpu", "sync=every_batch"), ["every_batch", "sync=accumulate"]),
        (("hardware=2cpu", "sync=no_sync"), ["no_sync", "sync=accumulate"]),
        (("hardware=tpu8",), ["XLA", "seeding=exact"]),
    ],
)
def test_bitwise_refuses_what_it_cannot_hold(settings: tuple[str, ...], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        plan("batch.size=64", "seeding=bitwise", *settings)
    assert all(line in str(refused.value) for line in lines), str(refused.value)
    assert plan("batch.size=64", "seeding=exact", *settings).config.seeding.mode.value == "exact"


@pytest.mark.parametrize(("threads", "used"), [(None, 1), (2, 2)])
def test_bitwise_has_one_thread_count(threads: int | None, used: int) -> None:
    """Whatever the processes: large sums depend on it. The plan says which."""
    for hardware in ("cpu", "2cpu", "8cpu"):
        made = plan("batch.size=64", "seeding=bitwise", f"hardware={hardware}", f"hardware.threads={threads or 'null'}")
        assert threads_of(made) == used
        assert any(f"here {used}" in note for note in made.notes)


@pytest.mark.parametrize(("processes", "levels"), [(2, 1), (4, 2), (8, 3)])
def test_what_bitwise_sends(processes: int, levels: int) -> None:
    made = plan("batch.size=8", f"hardware={processes}cpu", "seeding=bitwise")
    comm = made.with_sizes(Sizes(items=100, parameters=1_000_000)).comm
    assert (comm.reductions, comm.collectives, comm.bytes) == (1, 4, levels * 4 * 1_000_002)
