"""A model whose memory is easily told: layers of equal width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.probe_tasks import Probe


class Wide(Probe):
    """`depth` square layers of `width`; the loss is the sum of squares of what comes out."""

    def __init__(self, width: int, depth: int, items: int = 8):
        super().__init__()
        self.width, self.depth, self.items = width, depth, items

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(self.width, self.width, bias=False) for _ in range(self.depth)))

    def train_data(self) -> list[int]:
        return list(range(self.items))

    def collate(self, items: list[int]) -> Tensor:
        return torch.stack([torch.full((self.width,), 1.0 / (1 + i)) for i in items])

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        return (model(batch) ** 2).sum(), float(len(batch))
