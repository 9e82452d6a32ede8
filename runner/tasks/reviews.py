"""Does a review praise or blame? A classifier in BERT's shape on reviews that are made up: nothing is downloaded.

Large enough for what is sent between processes to matter (5.3 million parameters, 21 MB), small enough for a CPU. Words are
as frequent as in language (Zipf's law); some carry an opinion, and most of a review's opinions, not all, agree with its label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runner.plan import Sizes
from runner.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

PAD, START, WORDS_FROM = 0, 1, 2
OPINIONS = 3  # every third word praises, every third but one blames
HONEST = 0.8  # of a review's opinions


class Reviews(Task):
    """Reviews with 1 for praise, 0 for blame.

    `items` are for training, a quarter as many again for evaluation. `width`, `layers` and `heads` are the encoder's, `vocabulary`
    counts words, `length` is that of the longest review in tokens.
    """

    def __init__(
        self, items: int = 1056, width: int = 256, layers: int = 4, heads: int = 4, vocabulary: int = 8192,
        length: int = 32, dropout: float = 0.1,
    ):  # fmt: skip
        self.items, self.width, self.layers, self.heads = items, width, layers, heads
        self.vocabulary, self.length, self.dropout = vocabulary, length, dropout

    def model(self) -> nn.Module:
        return _network(self)

    def train_data(self) -> list[tuple[np.ndarray, int]]:
        return _reviews(self, 0, self.items)

    def eval_data(self) -> list[tuple[np.ndarray, int]]:
        return _reviews(self, 1, max(1, self.items // 4))

    def collate(self, items: list[Any]) -> tuple[Tensor, Tensor]:
        import torch

        tokens, labels = zip(*items, strict=True)
        return torch.from_numpy(np.stack(tokens)), torch.tensor(labels)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        from torch.nn.functional import cross_entropy

        tokens, labels = batch
        return cross_entropy(model(tokens), labels, reduction="sum"), len(labels)

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, float]]:
        tokens, labels = batch
        return {"accuracy": ((model(tokens).argmax(1) == labels).sum(), len(labels))}

    def sizes(self) -> Sizes:
        d = self.width
        embeddings = (self.vocabulary + self.length + 2) * d  # words, places, and their normalization
        head = d * d + d + 2 * d + 2
        return Sizes(
            items=self.items,
            parameters=embeddings + self.layers * (12 * d * d + 13 * d) + head,
            last=self.vocabulary * d,
        )


def _reviews(task: Reviews, part: int, count: int) -> list[tuple[np.ndarray, int]]:
    """Reviews as rows of tokens, with their labels. The same on every machine and under every seed."""
    random = np.random.RandomState(part)
    words = np.arange(WORDS_FROM, task.vocabulary)
    frequency = 1 / np.arange(1, len(words) + 1)
    frequency /= frequency.sum()
    found = []
    for number in range(count):
        label = number % 2
        text = random.choice(words, random.randint(task.length // 2, task.length), p=frequency)
        opinion = text % OPINIONS  # 0: blame, 1: praise, 2: none
        turned = (opinion == 1 - label) & (random.rand(len(text)) < HONEST)
        text = np.clip(np.where(turned, text + (2 * label - 1), text), WORDS_FROM, task.vocabulary - 1)
        row = np.full(task.length, PAD, dtype=np.int64)
        row[: len(text) + 1] = [START, *text]
        found.append((row, label))
    return found


def _network(task: Reviews) -> nn.Module:
    """An encoder with embeddings of words and places; the first place decides."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = task.width
            self.words = nn.Embedding(task.vocabulary, d)
            self.places = nn.Embedding(task.length, d)
            self.norm = nn.LayerNorm(d)
            self.dropout = nn.Dropout(task.dropout)
            layers = [
                nn.TransformerEncoderLayer(d, task.heads, 4 * d, task.dropout, "gelu", batch_first=True)
                for _ in range(task.layers)
            ]
            self.layers = nn.ModuleList(layers)
            self.pool = nn.Linear(d, d)
            self.head = nn.Linear(d, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.dropout(self.norm(self.words(tokens) + self.places(places)))
            for layer in self.layers:
                x = layer(x, src_key_padding_mask=tokens == PAD)
            out: Tensor = self.head(torch.tanh(self.pool(x[:, 0])))
            return out

    return Encoder()
