"""The memory that a plan predicts against what runs measure; what it says of devices that do not have it."""

from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.launch.chosen import chosen
from runner.plan import Plan
from runner.predict.advice import fitting
from runner.predict.memory import predict, predict_with_advice
from tests.running import Bench, plan_of

pytestmark = pytest.mark.ranks

WITHIN = 0.05
WIDE = ("tests.probe_memory.Wide", {"width": 256, "depth": 8, "items": 400})
DEEP = ("tests.probe_memory.Deep", {"width": 128, "depth": 6, "items": 400})
FSDP, HSDP = ("hardware.parallel=fsdp",), ("hardware.parallel=hsdp", "hardware.shard=2")
CHECKPOINTS = ("activation_checkpoint=true",)


def setting(processes: int, accum: int, policy: str, *rest: str) -> tuple[str, ...]:
    where = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    size = 4 * processes * accum
    return (
        where, f"accum={accum}", f"sync.policy={policy}", f"batch.size={size}", "budget.updates=3", "log.memory=true", *rest,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (WIDE, setting(1, 4, "accumulate", "optim=adamw")),
        (WIDE, setting(2, 4, "accumulate")),
        (DEEP, setting(2, 2, "accumulate")),
        (WIDE, setting(2, 4, "every_batch", "optim.momentum=0.9")),
        (WIDE, setting(2, 4, "every_batch", *FSDP)),
        (DEEP, setting(1, 1, "accumulate", "optim=adamw", *CHECKPOINTS)),
        (DEEP, setting(2, 4, "accumulate", "optim=adamw", *FSDP)),
        (DEEP, setting(4, 2, "every_batch", "optim=adamw", *FSDP, *CHECKPOINTS)),
        (DEEP, setting(4, 2, "accumulate_local", "optim=adamw", *HSDP)),
    ],
)  # fmt: skip
def test_as_measured(bench: Bench, task: tuple[str, dict[str, int]], settings: tuple[str, ...]) -> None:
    run = bench.run(*task, *settings)
    predicted = predict(plan_of(*task, *settings))
    assert predicted.peak_bytes == pytest.approx(max(run.column("peak_memory")), rel=WITHIN)
    assert sum(predicted.parts.values()) == predicted.peak_bytes


@pytest.mark.parametrize(
    "other",
    [setting(2, 4, "accumulate", "optim=adamw"), setting(2, 4, "accumulate", "optim=adamw", *FSDP),
     setting(2, 4, "every_batch", *FSDP), setting(2, 4, "every_batch", "optim=adamw", *FSDP, *CHECKPOINTS)],
)  # fmt: skip
def test_prediction_control(bench: Bench, other: tuple[str, ...]) -> None:
    """Another way of sharding, another policy, optimizer or checkpointing is another number, seen by the same check."""
    run = bench.run(*DEEP, *setting(2, 4, "every_batch", "optim=adamw", *FSDP))
    assert predict(plan_of(*DEEP, *other)).peak_bytes != pytest.approx(max(run.column("peak_memory")), rel=WITHIN)


def test_parts() -> None:
    """Weights, gradients and Adam's two moments are known by hand."""
    weights = 8 * 256 * 256 * 4
    parts = predict(plan_of(*WIDE, *setting(1, 1, "accumulate", "optim=adamw"))).parts
    assert parts["weights"] == parts["gradients"] == weights
    assert parts["optimizer"] == pytest.approx(2 * weights, rel=0.001)
    shared = predict(plan_of(*WIDE, *setting(2, 4, "accumulate", "optim=adamw", *FSDP))).parts
    assert (shared["weights"], shared["optimizer"]) == (weights / 2, pytest.approx(weights, rel=0.001))
    assert shared["gradients, unsharded"] > 0.8 * weights, "at the peak, most are still whole"


def on_devices(gib: float, *settings: str) -> Plan:
    return plan_of(*DEEP, *settings, f"hardware.memory={gib}")


def test_fits_or_not() -> None:
    """What would fit is what keeps the updates, and fits: the same check, applied to it, says so."""
    settings = setting(2, 4, "accumulate", "optim=adamw", *FSDP)
    need = predict(on_devices(1.0, *settings)).peak_bytes
    assert need is not None
    assert predict_with_advice(on_devices(need * 1.01 / 2**30, *settings)).advice is None
    tight = on_devices(need * 0.95 / 2**30, *settings)
    told = predict_with_advice(tight)
    assert told.capacity is not None
    assert told.capacity < need
    assert told.advice is not None
    assert told.advice.startswith("with sync=every_batch it would be")
    found = fitting(tight, predict)
    assert found is not None
    typed, memory = found
    again = predict(on_devices(need * 0.95 / 2**30, *setting(2, 4, "every_batch", "optim=adamw", *FSDP)))
    assert (typed, memory.peak_bytes) == ("sync=every_batch", again.peak_bytes)
    hopeless = predict_with_advice(on_devices(1e-6, *settings))
    assert hopeless.advice == "no sync policy, accum or checkpointing tried would fit"


def test_the_choice_before_a_run() -> None:
    """Made in a process beside this one, as for a run; the peak of what was chosen fits, that of the next size does not."""
    small = ("tests.probe_memory.Deep", {"width": 64, "depth": 1, "items": 400})

    def peak(per_device: int) -> int:
        made = plan_of(*small, "batch=auto", "batch.size=64", "hardware=2cpu", f"batch.per_device={per_device}")
        return predict(made).peak_bytes or 0

    def among(room: float) -> Plan:
        memory = f"hardware.memory={room / 2**30}"
        return chosen(plan_of(*small, "batch=auto_memory", "batch.size=64", "hardware=2cpu", memory))

    made = among((peak(4) + peak(8)) / 2)
    assert (made.arithmetic.per_device, made.arithmetic.accum, made.arithmetic.observed) == (4, 8, 64)
    assert made.memory.peak_bytes == peak(4)
    with pytest.raises(ConfigError, match="a single item on each device would need"):
        among(peak(1) / 2)


def test_mixtral_on_eight_devices() -> None:
    """The guide's table: fits at accum 1, not at accum 2 without a reduction, again at 16 with one at every micro-batch."""
    from runner.compose.app import compose_one
    from runner.compose.arguments import parse

    def gib(*overrides: str) -> tuple[float, bool]:
        memory = predict(compose_one(parse(["recipe=fsdp_memory", *overrides])))
        assert memory.peak_bytes is not None
        assert memory.capacity is not None
        return memory.peak_bytes / 2**30, memory.peak_bytes <= memory.capacity

    one, two, sixteen = gib("accum=1"), gib("accum=2", "sync=no_sync"), gib()
    assert [fits for _, fits in (one, two, sixteen)] == [True, False, True]
    assert sixteen[0] == pytest.approx(one[0], rel=0.04)
