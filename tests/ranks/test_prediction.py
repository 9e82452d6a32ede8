"""The memory that a plan predicts against what runs measure; what it says of devices that do not have it."""

from __future__ import annotations

import pytest

from runner.build import build
from runner.errors import ConfigError
from runner.launch.chosen import chosen
from runner.plan import Plan
from runner.predict.advice import fitting
from runner.predict.memory import predict, predicted, survey
from tests.running import Bench, plan_of

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

WITHIN = 0.05
WIDE = ("tests.probe_memory.Wide", {"width": 256, "depth": 8, "items": 400})
LONG = ("tests.probe_memory.Wide", {"width": 256, "depth": 16, "items": 400})
DEEP = ("tests.probe_memory.Deep", {"width": 128, "depth": 6, "items": 400})
FSDP, HSDP = ("hardware.parallel=fsdp",), ("hardware.parallel=hsdp", "hardware.shard=2")
LOW = ("precision=bf16", 'precision.weights="bf16"')
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
        (LONG, setting(2, 4, "every_batch", *FSDP)),
        (DEEP, setting(1, 1, "accumulate", "optim=adamw", *CHECKPOINTS)),
        (DEEP, setting(2, 4, "accumulate", "optim=adamw", *FSDP)),
        (DEEP, setting(4, 2, "every_batch", "optim=adamw", *FSDP, *CHECKPOINTS)),
        (DEEP, setting(4, 2, "accumulate_local", "optim=adamw", *HSDP)),
        (WIDE, setting(2, 4, "accumulate", "optim=adamw", *LOW)),
        (LONG, setting(2, 4, "every_batch", "optim=adamw", *LOW, *FSDP)),
        (LONG, setting(2, 4, "accumulate", "optim=adamw", *LOW, *FSDP)),
    ],
)  # fmt: skip
def test_as_measured(bench: Bench, task: tuple[str, dict[str, int]], settings: tuple[str, ...]) -> None:
    run = bench.run(*task, *settings)
    plan = plan_of(*task, *settings)
    memory, comm = survey(plan)
    peaks = run.column("peak_memory")
    # a reduce-scatter that waits for the other process holds its buffer a moment longer, in one window and not in the next
    measured = min(peaks[1:]) if plan.config.hardware.sharded else max(peaks)
    assert memory.peak_bytes == pytest.approx(measured, rel=WITHIN)
    assert sum(memory.parts.values()) == memory.peak_bytes
    if plan.config.hardware.sharded:
        assert [comm.collectives] * 3 == run.column("collectives")
        assert [comm.bytes] * 3 == run.column("bytes")
        assert comm.reductions == plan.arithmetic.accum * (len({*run.column("synced", "batches")}) == 1) or 1


def test_what_is_sent_control(bench: Bench) -> None:
    """Another policy, another way of sharding, one micro-batch more: other counts."""
    run = bench.run(*DEEP, *setting(2, 4, "accumulate", "optim=adamw", *FSDP))
    sent = run.column("collectives")[0], run.column("bytes")[0]
    for other in (
        setting(2, 4, "every_batch", *FSDP),
        setting(2, 5, "accumulate", *FSDP),
        setting(4, 4, "accumulate", *HSDP),
    ):
        comm = survey(plan_of(*DEEP, *other))[1]
        assert comm.collectives != sent[0]
        assert comm.bytes != sent[1]


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
    assert predicted(on_devices(need * 1.01 / 2**30, *settings)).memory.advice is None
    tight = on_devices(need * 0.95 / 2**30, *settings)
    told = predicted(tight).memory
    assert told.capacity is not None
    assert told.capacity < need
    assert told.advice is not None
    assert told.advice.startswith("with sync=every_batch it would be")
    found = fitting(tight, predict)
    assert found is not None
    typed, memory = found
    again = predict(on_devices(need * 0.95 / 2**30, *setting(2, 4, "every_batch", "optim=adamw", *FSDP)))
    assert (typed, memory.peak_bytes) == ("sync=every_batch", again.peak_bytes)
    hopeless = predicted(on_devices(1e-6, *settings)).memory
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


@pytest.mark.parametrize("task", [WIDE, DEEP])
def test_accumulation_adds_a_share_at_most(task: tuple[str, dict[str, int]]) -> None:
    """S1. At accum 1 a window's forward finds no gradient; later ones find the sum so far, which has to be somewhere: a
    process's share of it, and for a moment the part's own that is added. So that is the bound, whatever the accum."""
    peaks = {}
    for policy in ("every_batch", "accumulate"):
        for accum in (1, 2, 16):
            plan = plan_of(*task, *setting(4, accum, policy, *FSDP))
            peaks[policy, accum] = predict(plan).peak_bytes or 0
    parameters = sum(p.numel() for p in build(task[0], **task[1]).model().parameters())
    share = parameters * 4 // 4
    part = share // task[1]["depth"]
    one, two, sixteen = (peaks["every_batch", n] for n in (1, 2, 16))
    assert two == sixteen
    assert 0 <= sixteen - one <= share + 2 * part
    assert peaks["accumulate", 16] - peaks["accumulate", 1] > share + 2 * part, "the control: the whole gradient"


@pytest.mark.slow
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
    assert sixteen[0] == pytest.approx(one[0], rel=0.03)
