"""A language model of experts, in the shape of Mixtral: to plan memory with, or to train in small.

Attention with grouped keys and values, and in each layer several experts of which a word passes through some. Here
every expert takes the same number of words, those that its router scores highest, so that all shapes are known before.
The words are random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.task import Task


@dataclass(frozen=True, slots=True)
class Shape:
    """`chosen` of `experts` experts for each word, on average."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    experts: int
    chosen: int
    words: int


class Mixture(Task):
    """Texts of `length` random words. By default a model of a few hundred thousand parameters."""

    def __init__(
        self, layers: int = 2, width: int = 64, inner: int = 128, heads: int = 4, groups: int = 2, experts: int = 4,
        chosen: int = 2, words: int = 256, length: int = 64, items: int = 256,
    ):  # fmt: skip
        self._shape = Shape(layers, width, inner, heads, groups, experts, chosen, words)
        self._length, self._items = length, items

    def model(self) -> nn.Module:
        return Mixtral(self._shape)

    def train_data(self) -> Words:
        return Words(self._items, self._length, self._shape.words)

    def shard(self, model: nn.Module) -> list[nn.Module]:
        return list(model.layers)  # type: ignore[arg-type]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        targets = batch[:, 1:]
        logits = model(batch[:, :-1])
        total = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        return total, float(targets.numel())


class Words:
    """`items` texts of `length` words and one to predict, the same for ever for the same index."""

    def __init__(self, items: int, length: int, words: int):
        self._items, self._length, self._words = items, length, words

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, index: int) -> Tensor:
        stream = torch.Generator().manual_seed(index)
        return torch.randint(self._words, (self._length + 1,), generator=stream)


class Mixtral(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.before_attention, self.before_experts = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention, self.experts = Attention(shape), Experts(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.experts(self.before_experts(x))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal; several heads share keys and values. No positions: random words have no order to learn."""

    def __init__(self, shape: Shape):
        super().__init__()
        self._heads, self._groups, size = shape.heads, shape.groups, shape.width // shape.heads
        self.queries = nn.Linear(shape.width, shape.heads * size, bias=False)
        self.keys = nn.Linear(shape.width, shape.groups * size, bias=False)
        self.values = nn.Linear(shape.width, shape.groups * size, bias=False)
        self.out = nn.Linear(shape.heads * size, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries(x).unflatten(-1, (self._heads, -1)).transpose(1, 2)
        keys, values = (
            layer(x).unflatten(-1, (self._groups, -1)).transpose(1, 2).repeat_interleave(self._heads // self._groups, 1)
            for layer in (self.keys, self.values)
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Gated layers, one for each expert. An expert takes the words that score highest with it."""

    def __init__(self, shape: Shape):
        super().__init__()
        self._share = shape.chosen / shape.experts
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.into = nn.Parameter(torch.empty(shape.experts, shape.width, 2 * shape.inner))
        self.back = nn.Parameter(torch.empty(shape.experts, shape.inner, shape.width))
        for weight in (self.into, self.back):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        words = x.flatten(0, 1)
        scores = functional.softmax(self.router(words).float(), -1).to(x.dtype)
        best, places = scores.T.topk(max(1, round(self._share * len(words))), -1)  # (experts, taken)
        gate, up = torch.bmm(words[places], self.into).chunk(2, -1)
        done = torch.bmm(functional.silu(gate) * up, self.back) * best[..., None]
        return torch.zeros_like(words).index_add(0, places.flatten(), done.flatten(0, 1).to(x.dtype)).view_as(x)
