"""`precision=fp16`: a loss scale that shows nowhere but in its own column, and overflows that all processes agree about."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runner import loop
from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

POLICIES = ("accumulate", "no_sync", "every_batch", "backward_only")
FP16 = ("precision=fp16", "precision.scale=1024", "data.shuffle=false")
near = pytest.approx


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


# A7


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("processes", "accum"), [(1, 1), (1, 2), (2, 1)])
def test_clipping_sees_no_scale(bench: Bench, processes: int, accum: int, policy: str) -> None:
    """A7 in fp16 with scale 1024: the norm is 2.5, w (-0.6, -0.8), to the rounding of fp32."""
    settings = (*FP16, "optim.lr=1", "optim.clip=1.0", "batch.size=2", f"accum={accum}", f"sync={policy}")
    run = bench.run("Vector", {"values": [[3, 0], [0, 4]]}, *settings, cpus(processes))
    assert run.column("grad_norm") == near([2.5])
    assert run.weights["w"].tolist() == near([-0.6, -0.8])
    assert run.column("scale") == [1024.0]
    assert run.column("loss") == [0.0]


def test_clipping_control(bench: Bench) -> None:
    """The control of A7: clipped with the scale in them, the gradients have another norm."""
    settings = (*FP16, "optim.lr=1", "optim.clip=1.0", "batch.size=2")
    run = bench.run("Vector", {"values": [[3, 0], [0, 4]], "fault": "scale_forgotten"}, *settings)
    assert run.column("grad_norm") == near([2560])


# overflow, growth, the schedule

HUGE = 1e35  # times 4096 it is no number of fp32, times 2048 it is
SCALES = [8192, 4096, 2048, 2048, 2048, 4096, 2048, 2048]  # halved by an overflow, doubled after three without one
SKIPPED = [s > 2048 for s in SCALES]
OVERFLOWING = ("precision=fp16", "precision.scale=8192", "precision.growth_interval=3", "data.shuffle=false",
               "batch.size=2", "optim.lr=1e-37", "schedule=linear", "budget.updates=8")  # fmt: skip


def overflowing(bench: Bench, processes: int, values: list[float], *settings: str, **more: Any) -> Run:
    arguments = {"values": values * 8, "watch": True, **more}
    return bench.run("Scalar", arguments, *OVERFLOWING, cpus(processes), f"accum={2 // processes}", *settings)


WHERE = [[HUGE, 0.0], [0.0, HUGE], [HUGE / 2, HUGE / 2]]
CASES = [(n, v, p) for n in (1, 2) for v in WHERE for p in POLICIES]
CASES = [c for c in CASES if c[:2] != (2, WHERE[2]) or c[2] in ("accumulate", "no_sync")]  # the others take no such sum


@pytest.mark.parametrize(("processes", "values", "policy"), CASES)
def test_overflows_are_agreed(bench: Bench, processes: int, values: list[float], policy: str) -> None:
    """On one process or the other, or in the sum alone: the update is left out everywhere, and the schedule waits."""
    run = overflowing(bench, processes, values, f"sync={policy}")
    assert run.column("scale") == SCALES
    assert run.column("skipped") == SKIPPED
    applied = [sum(not s for s in SKIPPED[:n]) for n in range(8)]
    assert run.column("lr") == near([1e-37 * (1 - n / 8) for n in applied])
    assert run.column("loss")[0] == near(HUGE / 2), "the logged loss has no scale in it"
    rows = [run.watched(rank) for rank in range(processes)]
    assert all(row["weights"] == first["weights"] for rank in rows for row, first in zip(rank, rows[0], strict=True))
    kept = [a["weights"] == b["weights"] for a, b in zip(rows[0], rows[0][1:], strict=False)]
    assert kept == SKIPPED[1:]


def test_overflows_control(bench: Bench) -> None:
    """The control: where only one process sees an overflow, one leaves the update out and the other stops for it."""
    arguments = {"values": [HUGE, 0.0] * 8, "watch": True, "fault": "overflow_alone"}
    run = bench.fail("Scalar", arguments, *OVERFLOWING, "hardware=2cpu", "hardware.timeout=5")
    assert len(run.watched(0)) == 1
    assert not (run.folder.logs / "watched-1.jsonl").exists()


@pytest.mark.parametrize("policy", ["accumulate", "every_batch"])
@pytest.mark.parametrize("place", [0, 1])
def test_overflows_of_a_share_are_agreed(bench: Bench, place: int, policy: str) -> None:
    """Sharded, each process holds one of two weights, and the gradient of one of them overflows."""
    values = [[HUGE * (place == 0), HUGE * (place == 1)], [0.0, 0.0]] * 8
    settings = (*OVERFLOWING, "hardware=2cpu", "hardware.parallel=fsdp", f"sync={policy}")
    run = bench.run("Vector", {"values": values}, *settings)
    assert run.column("scale") == SCALES
    assert run.column("skipped") == SKIPPED
    if (place, policy) == (1, "accumulate"):  # the control: one leaves the update out, the other stops
        failed = bench.fail(
            "Vector", {"values": values, "fault": "overflow_of_a_share"}, *settings, "hardware.timeout=5"
        )
        assert failed.folder.read_status()["state"] == "failed"


def test_a_loss_that_is_no_number_is_no_overflow(bench: Bench) -> None:
    """`nonfinite=stop` stops for it, as in every format; with `skip` it is left out."""
    values = {"values": [1.0] * 6, "nan": [3]}
    run = bench.fail("Scalar", values, *FP16, "batch.size=2", "hardware=2cpu")
    assert "update 2 is not finite: rank 1 micro-batch 1 (loss nan)" in run.folder.read_status()["reason"]
    run = bench.run("Scalar", values, *FP16, "batch.size=2", "hardware=2cpu", "nonfinite=skip")
    assert run.column("skipped") == [False, True, False]
    assert run.column("scale") == [1024, 1024, 512]


# S2, and a real model


def test_scale_is_continued(bench: Bench) -> None:
    """S2: broken off after 4 updates and continued from the scaler's state, scale, growth and skips go on as unbroken."""
    arguments = {"values": [HUGE, 0.0] * 8}
    whole, _ = bench.open("Scalar", arguments, *OVERFLOWING)
    first, _ = bench.open("Scalar", arguments, *OVERFLOWING)
    second, _ = bench.open("Scalar", arguments, *OVERFLOWING)
    seen: list[list[float]] = [[], []]
    for training, windows, out in ((whole, range(8), 0), (first, range(4), 1), (second, range(4, 8), 1)):
        if training is second:
            training.scaler.load_state_dict(first.scaler.state_dict())
        for window in list(training.windows)[windows.start : windows.stop]:
            loop.update(training, window)
            assert training.scaler.value is not None
            seen[out].append(float(training.scaler.value))
    assert seen == [SCALES, SCALES]


LEARNING = ("optim=adamw", "optim.lr=0.003", "optim.clip=1.0", "batch.size=16", "budget.updates=20", "accum=4")


def test_fp16_is_close(bench: Bench) -> None:
    """Within 1% of fp32 in the first updates, with gradients in fp32; the same on one process as on two."""
    full = bench.run("Text", {"items": 85}, *LEARNING, "hardware=2cpu")
    half = bench.run(
        "Text", {"items": 85, "watch": True}, *LEARNING, "hardware=2cpu", "precision=fp16", "precision.scale=1024"
    )
    assert half.column("loss") == near(full.column("loss"), rel=0.01)
    assert half.column("loss") != full.column("loss")
    assert half.watched(1)[-1]["kinds"] == ["torch.float32"]
    assert half.column("grad_norm") == near(full.column("grad_norm"), rel=0.02)
    alone = bench.run("Text", {"items": 85}, *LEARNING, "accum=8", "precision=fp16", "precision.scale=1024")
    assert alone.column("loss") == near(half.column("loss"), rel=1e-4)


@pytest.mark.parametrize("processes", [2, 4])
def test_fp16_to_the_last_bit(bench: Bench, processes: int) -> None:
    settings = (
        *LEARNING,
        "precision=fp16",
        "precision.scale=1048576",
        "precision.growth_interval=5",
        "seeding=bitwise",
    )
    runs = [bench.run("Text", {"items": 85}, *settings, cpus(p), f"accum={8 // p}") for p in (1, processes)]
    assert runs[0].column("loss", "batches") == runs[1].column("loss", "batches")
    assert runs[0].column("scale") == runs[1].column("scale")
    assert runs[0].folder.model.read_bytes() == runs[1].folder.model.read_bytes()
    assert torch.stack([w.isfinite().all() for w in runs[0].weights.values()]).all()


@pytest.mark.parametrize("every", [1, 5])
def test_one_read_per_update(bench: Bench, every: int) -> None:
    """An overflow must be known before the update: one wait for the device in each, whatever `log.every`."""
    training, _ = bench.open("Text", {"items": 85}, *LEARNING, *FP16, f"log.every={every}")
    for window in list(training.windows)[:10]:
        loop.update(training, window)
    assert training.losses.reads == 10 + 10 // every
