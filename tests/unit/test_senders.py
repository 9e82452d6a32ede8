"""What the sync policies keep from one window to the next, in a gloo group of this process alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from runner.choices import SyncPolicy
from runner.sync.ddp import Ddp
from runner.sync.local_sgd import LocalSgd
from runner.sync.objective import Objective
from runner.sync.powersgd import PowerSgd
from runner.sync.wire import Wire

near = pytest.approx


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def objective(model: nn.Module, weight: float = 1.0, constant: float = 0.0) -> Objective:
    """The loss is the sum of the parameters' products with the batch's tensors, and a constant."""

    def loss(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, float]:
        return sum((p * b).sum() for p, b in zip(model.parameters(), batch, strict=True)) + constant, weight

    precision: Any = SimpleNamespace(sums=torch.float32, forward=nullcontext)
    task: Any = SimpleNamespace(name="product", loss=loss)
    return Objective(task, model, precision)


def window(sync: Any, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    for parameter in sync._objective.model.parameters():
        parameter.grad = None
    sync.backward(sync.forward(batch, True)[0], True)
    return sync.finish()  # type: ignore[no-any-return]


# powersgd


def low_rank(model: nn.Module, weight: float = 1.0) -> PowerSgd:
    settings: Any = SimpleNamespace(rank=1, start=0)
    return PowerSgd(objective(model, weight), settings, 1, Wire(1), 0)


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_a_window_of_no_weight_keeps_what_was_lost(weight: float) -> None:
    """Zeros are applied in it, and the next window makes up for what is lost; with a weight (the control) it does itself."""
    model = nn.Linear(16, 16, bias=False)
    sync = low_rank(model)
    window(sync, [torch.randn(16, 16, generator=torch.Generator().manual_seed(1))])
    (matrix,) = sync._matrices
    lost, right = matrix.lost.clone(), matrix.right.clone()
    assert lost.norm() > 1
    sync._objective = objective(model, weight)
    window(sync, [torch.zeros(16, 16)])
    assert model.weight.grad is not None
    kept = [torch.equal(matrix.lost, lost), torch.equal(matrix.right, right), not model.weight.grad.any()]
    assert kept == [weight == 0] * 3


@pytest.mark.parametrize("start", [0, 1])
def test_gradients_of_any_layout(start: int) -> None:
    """Gradients that are not contiguous become the same product as those that are, not what they were (the control)."""
    values = torch.randn(16, 8, 3, 3, generator=torch.Generator().manual_seed(1))
    seen = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = nn.Conv2d(8, 16, 3, bias=False).to(memory_format=layout)
        sync = low_rank(model)
        sync._exact_left = start
        window(sync, [values])
        assert model.weight.grad is not None
        assert model.weight.grad.is_contiguous() == (layout is torch.contiguous_format)
        seen.append(model.weight.grad)
    assert torch.equal(*seen)
    assert torch.equal(seen[1], values) == bool(start)


# compress=fp16


class Together(Ddp):
    """The control: the loss and the weight stay in the bucket."""

    def _send_carrier(self, bucket: Any) -> None:
        before = bucket.buffer().clone()
        super()._send_carrier(bucket)
        bucket.buffer().copy_(before)


@pytest.mark.parametrize("kind", [Ddp, Together])
def test_the_scale_is_the_gradients(kind: type[Ddp]) -> None:
    """A large loss and weight beside small gradients: they cost these no digit, and are exact themselves."""
    carried = objective(nn.Linear(2, 1, bias=False), weight=3e6, constant=1e6)
    sync = kind(carried, SyncPolicy.accumulate, 1, 2**20, Wire(1, torch.float16))
    values = torch.tensor([[1e-4, 3e-7]])
    for _ in range(3):
        total, weight = window(sync, [values])
        assert (float(total), float(weight)) == (1e6, 3e6)
    (parameter,) = carried.model.parameters()
    assert (parameter.grad is not None and torch.allclose(parameter.grad, values, rtol=2**-10, atol=0)) == (kind is Ddp)
    sync.release()


def sent(wire: Wire, values: list[float]) -> list[float]:
    buffer = torch.tensor(values)
    wire.send(buffer).wait()
    wire.close()
    return buffer.tolist()


def test_zeros_and_the_smallest_gradients() -> None:
    """Zeros stay zeros, and what comes after them is as it was; so are the smallest numbers of fp32."""
    wire = Wire(1, torch.float16)
    sent(wire, [0.5, -0.25])
    for _ in range(1500):  # 0.9^1500 is no number of fp32
        zeros = sent(wire, [0.0, 0.0])
    assert zeros == [0.0, 0.0]
    assert sent(wire, [0.5, -0.25]) == [0.5, -0.25]
    small = Wire(1, torch.float16)
    for _ in range(3):
        assert sent(small, [1e-39, 0.0]) == [near(1e-39, rel=1e-2), 0.0]
    cut = sent(small, [1e10, float("inf")])  # the control: far above the scale it is cut, and only infinity stays
    assert 0 < cut[0] < 1e-30
    assert cut[1] == float("inf")


# local_sgd


def alive() -> int:
    gc.collect()
    return sum(type(o) is DistributedDataParallel for o in gc.get_objects())


@pytest.mark.parametrize("fault", [False, True])
def test_ddp_is_let_go(monkeypatch: pytest.MonkeyPatch, fault: bool) -> None:
    """After the last exact window no DDP and no buckets are alive; they are where nobody lets go of them (the control)."""
    release, others = Ddp.release, alive()
    if fault:
        monkeypatch.setattr(Ddp, "release", lambda self: None)
    settings: Any = SimpleNamespace(every=1, start=2)
    model = nn.Linear(2, 1, bias=False)
    sync = LocalSgd(objective(model), settings, 1, 2**20, Wire(1))
    seen = []
    for _ in range(4):
        window(sync, [torch.ones(1, 2)])
        seen.append(alive() - others)
    assert seen == ([1, 1, 1, 1] if fault else [1, 1, 0, 0])
    for kept in [o for o in gc.get_objects() if type(o) is Ddp]:
        release(kept)
