"""The measure of tensors' memory against sums by hand and against what torch's allocator says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from runner.backend.meter import Meter

FLOAT = 4


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    for _ in range(3):
        (model(batch) ** 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def peak_of_allocator(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> int:
    """The peak of what the CPU allocator hands out, beyond what is there before: in one process without collectives, where
    its events are whole."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        train(model, optimizer, batch)
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("kind", ["layers", "transformer"])
def test_as_the_allocator_says(kind: str) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 3) if kind == "transformer" else nn.Sequential(nn.Linear(256, 256), nn.GELU())
    batch = torch.randn(4, 32, 64) if kind == "transformer" else torch.randn(8, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, batch)
    meter = Meter()
    meter.hold([batch, *model.parameters(), *(v for s in optimizer.state.values() for v in s.values())])
    before = meter.current
    with meter:
        train(model, optimizer, batch)
    assert meter.current == before, "all that came is gone"
    assert meter.peak - before == pytest.approx(peak_of_allocator(model, optimizer, batch), rel=0.01)


def test_by_hand() -> None:
    """Three tensors of 100 numbers at most, however many there were; views and what is done in place take nothing."""
    meter = Meter()
    with meter:
        a = torch.ones(100)
        b = a + 1
        for _ in range(5):
            c = (a * b).view(10, 10)[2:].add_(1)
    assert meter.current == 3 * 100 * FLOAT
    assert meter.peak == 4 * 100 * FLOAT, "the next c is there before the last is gone"
    del a, b, c
    assert meter.current == 0


def test_peaks_begin_anew() -> None:
    meter = Meter()
    with meter:
        large = torch.ones(1000)
    del large
    meter.restart()
    with meter:
        torch.ones(10)
    assert meter.peak == 10 * FLOAT


def test_memory_that_is_given_back_and_taken_again() -> None:
    meter = Meter()
    with meter:
        gathered = torch.empty(100)
        gathered.untyped_storage().resize_(0)
        assert meter.current == 0
        gathered.untyped_storage().resize_(50 * FLOAT)
    assert meter.current == 50 * FLOAT


def test_what_was_made_elsewhere_does_not_count() -> None:
    outside = torch.ones(1000)
    with Meter() as meter:
        total = outside.sum()
    assert meter.current == total.nbytes
