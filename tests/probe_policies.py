"""Tasks whose every update can be followed by hand where processes make updates of their own, or send matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.probe_tasks import Parameters, Probe


class Quartic(Probe):
    """w = 0, the loss of an item is (w - v)^4 / 400: not even the mean of two w has the mean of their gradients."""

    def __init__(self, values: list[float], **rest: Any):
        super().__init__(**rest)
        self.values = torch.tensor(values)

    def model(self) -> nn.Module:
        return Parameters(w=0.0)

    def train_data(self) -> Tensor:
        return self.values

    def eval_data(self) -> Tensor:
        return self.values[:4]

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return (model.w - batch).pow(4).sum() / 400, float(len(batch))


class Tables(Probe):
    """A matrix of 8 x 8 and a vector of 8, zero at first; the loss of an item is their product with its values, so the
    gradient is the mean of the items. `nan`: the items that are no number."""

    def __init__(self, items: int, nan: tuple[int, ...] = (), **rest: Any):
        super().__init__(**rest)
        self.values = torch.randn(items, 9, 8, generator=torch.Generator().manual_seed(3))
        for place in nan:
            self.values[place] = torch.nan

    def model(self) -> nn.Module:
        return Parameters(w=torch.zeros(8, 8), b=torch.zeros(8))

    def train_data(self) -> Tensor:
        return self.values

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return (model.w * batch[:, :8]).sum() + (model.b * batch[:, 8]).sum(), float(len(batch))
