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


class Deep(Wide):
    """A transformer of `depth` layers in front of as many words as it is wide; a text has 32 of them."""

    def model(self) -> nn.Module:
        return Layers(self.width, self.depth)

    def collate(self, items: list[int]) -> Tensor:
        return torch.stack([(torch.arange(33) * (1 + i)) % self.width for i in items])

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        logits = model(batch[:, :-1])
        total = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        return total, float(batch[:, 1:].numel())


class Layers(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.words = nn.Embedding(width, width)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]
