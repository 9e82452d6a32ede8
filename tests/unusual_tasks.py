"""Tasks that do what tasks may do but rarely do, and some that do what they may not."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import nn


class Plain:
    """Regression on 37 random items."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_data(self) -> list[Any]:
        g = torch.Generator().manual_seed(1)
        return list(zip(torch.randn(37, 4, generator=g), torch.randn(37, 1, generator=g), strict=True))

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        return (model(batch[0]) - batch[1]).square().sum(), len(batch[0])


class Noise(torch.optim.SGD):
    """An optimizer that draws numbers."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.randn_like(p) * 0.01)


class RankNoise(torch.optim.SGD):
    """The control: an optimizer whose draws depend on the rank."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(0.01 * int(os.environ["RANK"]))


class Head(torch.optim.SGD):
    """An optimizer that holds only the last layer."""

    def __init__(self, params: Any, lr: float):
        super().__init__(list(params)[2:], lr)


class Complex(Plain):
    """A model with a complex parameter and a complex buffer."""

    def model(self) -> nn.Module:
        return _Spectral()


class _Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 1, dtype=torch.cfloat))
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.turn.is_complex() and self.weight.is_complex()
        return ((x * self.turn) @ self.weight).imag


class OddBuffers(Plain):
    """Buffers in formats that few libraries send."""

    def model(self) -> nn.Module:
        model = super().model()
        for i, kind in enumerate((torch.int16, torch.bool, torch.bfloat16, torch.complex64, torch.uint8)):
            model.register_buffer(f"b{i}", torch.ones(3, dtype=kind))
        model.register_buffer("expanded", torch.arange(4)[None].expand(3, 4))
        model.register_buffer("scalar", torch.tensor(2, dtype=torch.int16))
        return model

    def eval_data(self) -> list[Any]:
        return self.train_data()


class Spectral(Plain):
    """A model whose buffers change in training (power iterations)."""

    def model(self) -> nn.Module:
        norm = torch.nn.utils.parametrizations.spectral_norm
        return nn.Sequential(norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1))

    def eval_data(self) -> list[Any]:
        return self.train_data()


class OneBuffer(Plain):
    """A collate that fills the same tensors again and again."""

    def __init__(self) -> None:
        self.x, self.y = torch.empty(2, 4), torch.empty(2, 1)

    def collate(self, items: list[Any]) -> Any:
        for i, (x, y) in enumerate(items):
            self.x[i], self.y[i] = x, y
        return self.x[: len(items)], self.y[: len(items)]


class OneWeight(Plain):
    """A weight that is kept in one tensor."""

    def __init__(self) -> None:
        self.weight = torch.zeros(())

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        total, weight = super().loss(model, batch)
        return total, self.weight.fill_(weight)


class Leaves(Plain):
    """Ends its process."""

    def __init__(self, how: str):
        self.how = how

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        if self.how == "os._exit":
            os._exit(0)
        raise SystemExit({"zero": 0, "words": "the licence has expired"}[self.how])


class Reentrant(Plain):
    """Checkpoints in the old way."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        inputs = batch[0].clone().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=True)
        return (out - batch[1]).square().sum(), len(batch[0])


class Freezes(Plain):
    """Freezes a parameter in the middle of training."""

    calls = 0

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        self.calls += 1
        if self.calls == 7:
            next(model.parameters()).requires_grad_(False)
        return super().loss(model, batch)


class Sparse(Plain):
    """An embedding with sparse gradients."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        return (model(batch[0].abs().long() % 10) - batch[1]).square().sum(), len(batch[0])


class Pair:
    """An item of a class of one's own."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y


class Objects(Plain):
    """Items that are objects; each process has allocated other things before."""

    def __init__(self, shift: float = 0.0):
        self.shift = shift
        self.clutter = [object() for _ in range(1000 * int(os.environ.get("RANK", 0)))]

    def train_data(self) -> list[Any]:
        return [Pair(x + self.shift, y) for x, y in super().train_data()]

    def collate(self, items: list[Any]) -> Any:
        return torch.stack([i.x for i in items]), torch.stack([i.y for i in items])


class Metrics(Plain):
    """Metrics of any form."""

    def __init__(self, form: str):
        self.form = form

    def eval_data(self) -> list[Any]:
        return self.train_data()

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        return {"number": {"acc": 0.5}, "list": [1], "taken": {"loss": (1, 1)}, "good": {"acc": (1, 2)}}[self.form]


class Weighted(Plain):
    """A weight below zero, or a number of numpy's."""

    def __init__(self, weight: str):
        self.weight = weight

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        total, weight = super().loss(model, batch)
        return total, {"negative": -weight, "numpy": np.int64(weight)}[self.weight]


class Rubbish(Plain):
    """Gives what nobody can use, in one of its methods."""

    def __init__(self, how: str):
        self.how = how
        if how == "no method":
            self.metrics = None

    def train_data(self) -> Any:
        return {"no data": None, "no items": [], "names": {"a": 1}, "None items": [None] * 9}.get(
            self.how, super().train_data()
        )

    def eval_data(self) -> Any:
        return [] if self.how == "nothing to evaluate" else None

    def collate(self, items: list[Any]) -> Any:
        return None if self.how == "no batch" else torch.utils.data.default_collate(items)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if batch is None:
            return torch.zeros((), requires_grad=True), 0
        total, weight = super().loss(model, batch)
        given = {
            "text": "high",
            "numpy": np.float64(1.0),
            "cut off": total.detach().requires_grad_(),
            "complex": total * 1j,
        }
        return given.get(self.how, total), float("inf") if self.how == "infinite" else weight
