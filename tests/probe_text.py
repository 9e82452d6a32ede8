"""A language model in small: everything that exactness has to hold for, in one task.

A transformer with dropout; texts of different lengths, so that the weight of a micro-batch is a number of tokens; texts changed at random
by draws from python's, numpy's and torch's generators.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.probe_tasks import Probe

VOCABULARY, LENGTH, IGNORED = 19, 9, -100


class Text(Probe):
    """Predict the next token. `augment`: change texts at random; `evaluated`: items to evaluate on;
    `still`: the block is kept in evaluation mode, as a frozen part of a model is; `depth`: further blocks, in a list;
    `shard`: the names of the parts that fsdp is to gather by themselves."""

    def __init__(
        self,
        items: int,
        dropout: float = 0.2,
        augment: bool = True,
        evaluated: int | None = None,
        still: bool = False,
        depth: int = 0,
        shard: Any = None,
        **rest: Any,
    ):
        super().__init__(**rest)
        self.depth, self.named = depth, shard
        self.items, self.dropout, self.augment, self.evaluated, self.still = items, dropout, augment, evaluated, still

    def model(self) -> nn.Module:
        model = Transformer(16, self.dropout, self.depth)
        model.block.train(not self.still)
        return model

    def shard(self, model: nn.Module) -> list[nn.Module] | None:
        return None if self.named is None else [model.get_submodule(name) for name in self.named]

    def train_data(self) -> Texts:
        return Texts(self.items, self.augment)

    def eval_data(self) -> Texts | None:
        return None if self.evaluated is None else Texts(self.evaluated, self.augment)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        targets = batch[:, 1:].clone()
        targets[targets == 0] = IGNORED
        logits = model(batch[:, :-1])
        total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total, (targets != IGNORED).sum()


class Texts:
    """Texts of 3 to 9 tokens, filled with 0; the same for ever for the same index, but for what `augment` changes."""

    def __init__(self, count: int, augment: bool):
        self._count, self._augment = count, augment

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        fixed = np.random.RandomState(index)
        tokens = fixed.randint(1, VOCABULARY, fixed.randint(3, LENGTH + 1))
        if self._augment:
            tokens[np.random.randint(len(tokens))] = random.randint(1, VOCABULARY - 1)
            tokens[int(torch.randint(len(tokens), ()))] = 1
        return torch.from_numpy(np.pad(tokens, (0, LENGTH - len(tokens))))


class Transformer(nn.Module):
    """One block of attention and one of two layers, with dropout in all the usual places."""

    def __init__(self, width: int, dropout: float, depth: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)
        more = [nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True) for _ in range(depth)]
        self.more = nn.ModuleList(more)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=self.out.weight.dtype)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        x = self.block(x, src_mask=mask, is_causal=True)
        for block in self.more:
            x = block(x, src_mask=mask, is_causal=True)
        return self.out(x)  # type: ignore[no-any-return]
