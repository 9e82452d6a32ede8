"""Peak memory of whole runs: what accumulation, sharding and the policies do to it."""

from __future__ import annotations

import pytest

from tests.running import Bench

pytestmark = pytest.mark.ranks

WIDTH, DEPTH, FLOAT = 128, 12, 4
LAYER = WIDTH * WIDTH * FLOAT
MODEL = DEPTH * LAYER


def peak(bench: Bench, processes: int, accum: int, *settings: str) -> int:
    """The peak of the third window, when everything is there that a window needs."""
    size = 2 * processes * accum
    where = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    run = bench.run(
        "tests.probe_memory.Wide", {"width": WIDTH, "depth": DEPTH, "items": 3 * size},
        where, f"accum={accum}", f"batch.size={size}", "log.memory=true", *settings,
    )  # fmt: skip
    return int(run.column("peak_memory")[-1])


FSDP = ("hardware.parallel=fsdp", "optim=adamw")


def test_one_process_by_hand(bench: Bench) -> None:
    """Weights and gradient; the activations; in the backward a layer's gradient twice, when it is added to the others."""
    plain = peak(bench, 1, 1)
    assert plain == pytest.approx(2 * MODEL, rel=0.02)
    assert peak(bench, 1, 4) == pytest.approx(2 * MODEL + LAYER, rel=0.02)
    momentum = peak(bench, 1, 1, "optim.momentum=0.9")
    assert momentum - plain == pytest.approx(MODEL, rel=0.02)


def test_every_batch_has_the_peak_of_accum_1(bench: Bench) -> None:
    """S1, and its control: under accumulate the whole gradient stays. A sum that is there before needs a reduction's result
    beside it, for the part at hand: less than two layers' memory, however deep the model."""
    one = peak(bench, 2, 1, *FSDP)
    many = {n: peak(bench, 2, n, *FSDP, "sync=every_batch") for n in (2, 16)}
    assert many[2] == pytest.approx(many[16], rel=0.02)
    assert -LAYER < many[16] - one < 2 * LAYER
    kept = peak(bench, 2, 16, *FSDP, "sync=accumulate")
    assert kept > 1.15 * one
    assert kept - many[16] > 0.3 * MODEL, "the gradient of the half of the model that is elsewhere"


def test_sharding_shares(bench: Bench) -> None:
    """Weights and Adam's two moments are a share, the gradient for one part at a time."""
    ddp = peak(bench, 4, 1, "optim=adamw")
    fsdp = peak(bench, 4, 1, *FSDP)
    assert ddp > 4 * MODEL
    assert fsdp < MODEL + 6 * LAYER


def test_only_the_first_windows_are_measured(bench: Bench) -> None:
    """Measuring takes time on a CPU: unless asked for, it is done where it shows the peak."""
    settings = ("batch.size=2", "optim=adamw")
    task = ("tests.probe_memory.Wide", {"width": WIDTH, "depth": DEPTH, "items": 10})
    peaks = {
        wish: bench.run(*task, *settings, f"log.memory={wish}").column("peak_memory")
        for wish in ("null", "true", "false")
    }
    assert [p is None for p in peaks["null"]] == [False, False, False, True, True]
    assert peaks["false"] == [None] * 5
    assert max(peaks["null"][:3]) == max(peaks["true"])
    assert peaks["true"][1:] == pytest.approx([peaks["true"][1]] * 4, rel=0.01)
