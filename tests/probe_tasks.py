"""Small tasks with right values that can be worked out by hand.

Each takes `fault`, the name of a deliberate fault from `tests.faults`, and `watch`, whether `tests.watching`
takes notes in the rank.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from runner.task import Task
from tests import faults, watching

FILLER = 99.0  # what ignored tokens hold: far enough from any value to be seen if it counts


class Probe(Task):
    """A task with parameters of its own choice, in a module that hands them out."""

    def __init__(self, fault: str | None = None, watch: bool = False):
        if watch:
            watching.watch()
        if fault is not None:
            faults.plant(fault)


class Parameters(nn.Module):
    """Parameters by name."""

    def __init__(self, **values: Any):
        super().__init__()
        for name, value in values.items():
            setattr(self, name, nn.Parameter(torch.as_tensor(value, dtype=torch.float32)))


class Scalar(Probe):
    """W: one scalar w = 1, a token's loss is w * v; an item is one value or a list of tokens.

    `pad`: every micro-batch is filled to so many tokens, which are ignored. `weigh`: "tokens", "items" or "number" (of tokens,
    as a plain float). `mean`: the mean is returned in place of the sum, the mistake that the contract warns of.
    `nan`, `inf`: the items whose value is no number; `rooted`: the loss is finite but has no finite gradient where a
    value is this one; `raises`: the loss raises ValueError there. `reads`: the loss makes the host wait for the device.
    """

    def __init__(
        self, values: Any = (1.0,), evaluated: Any = None, pad: int = 1, weigh: str = "tokens", mean: bool = False,
        nan: Any = (), inf: Any = (), reads: bool = False, sleep: float = 0.0,
        rooted: float | None = None, raises: float | None = None, **rest: Any,
    ):  # fmt: skip
        super().__init__(**rest)
        self.items = [[float(v) for v in (item if isinstance(item, list) else [item])] for item in values]
        self.evaluated = evaluated
        self.pad, self.weigh, self.mean, self.reads, self.sleep = pad, weigh, mean, reads, sleep
        self.rooted, self.raises = rooted, raises
        for places, value in ((nan, float("nan")), (inf, float("inf"))):
            for place in places:
                self.items[place] = [value]

    def model(self) -> nn.Module:
        return Parameters(w=1.0)

    def train_data(self) -> list[Any]:
        return self.items

    def eval_data(self) -> list[Any] | None:
        return None if self.evaluated is None else [[float(v)] for v in self.evaluated]

    def collate(self, items: list[list[float]]) -> tuple[Tensor, Tensor]:
        width = max(self.pad, *(len(i) for i in items))
        values = torch.tensor([i + [FILLER] * (width - len(i)) for i in items])
        return values, torch.tensor([[1.0] * len(i) + [0.0] * (width - len(i)) for i in items])

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | float]:
        time.sleep(self.sleep)
        values, mask = batch
        if self.raises is not None and self.raises in values:
            raise ValueError("a value that the task refuses")
        total = (model.w * torch.where(mask > 0, values, 0.0)).sum()
        if self.rooted is not None and self.rooted in values:
            total = total + (model.w * 0.0).sqrt()
        weight: Tensor | float = mask.sum()
        if self.weigh != "tokens":
            weight = float(len(values)) if self.weigh == "items" else float(weight)
        if self.reads:
            total.item()
        return (total / weight if self.mean else total), weight


class Vector(Probe):
    """V: w = (0, 0), the loss of an item is w . v."""

    def __init__(self, values: Any, **rest: Any):
        super().__init__(**rest)
        self.values = torch.tensor(values, dtype=torch.float32)

    def model(self) -> nn.Module:
        return Parameters(w=[0.0, 0.0])

    def train_data(self) -> Tensor:
        return self.values

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return (model.w * batch).sum(), float(len(batch))


class Ids(Probe):
    """Id: the loss of an item is w[id] + id. With micro-batches of one item and no learning, a loss tells the id.

    `evaluated` counts the items to evaluate on; `scores` are what ranks give themselves there: a list for each rank,
    a value for each evaluation.
    """

    def __init__(self, items: int, evaluated: int | None = None, scores: Any = None, **rest: Any):
        super().__init__(**rest)
        self.count, self.evaluated, self.scores = items, evaluated, scores
        self.evaluations = -1  # one batch is tried before training

    def model(self) -> nn.Module:
        return Parameters(w=[0.0] * max(self.count, self.evaluated or 0))

    def train_data(self) -> list[int]:
        return list(range(self.count))

    def eval_data(self) -> list[int] | None:
        return None if self.evaluated is None else list(range(self.evaluated))

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return (model.w[batch] + batch).sum(), float(len(batch))

    def metrics(self, model: Any, batch: Tensor) -> dict[str, tuple[Tensor, float]]:
        if self.scores is None:
            return {}
        self.evaluations += 1
        mine = self.scores[int(os.environ["RANK"])]
        return {"score": (torch.tensor(float(mine[max(0, min(self.evaluations, len(mine)) - 1)])), 1.0)}


class Branches(Probe):
    """Two scalars a = b = 1; an item names the ones that it uses, each with gradient 1. "" uses neither."""

    def __init__(self, uses: Any, **rest: Any):
        super().__init__(**rest)
        self.uses = list(uses)

    def model(self) -> nn.Module:
        return Parameters(a=1.0, b=1.0, always=0.0)

    def train_data(self) -> list[str]:
        return self.uses

    def collate(self, items: list[str]) -> list[str]:
        return items

    def loss(self, model: Any, batch: list[str]) -> tuple[Tensor, float]:
        total = model.always * 1.0
        for names in batch:
            for name in names:
                total = total + getattr(model, name)
        return total, float(len(batch))


class Parts(Probe):
    """Vectors a = b = (1, 1, 1) and a scalar s = 1; an item names those that it uses, and has their sum of squares as its loss.

    An item with a "!" has no finite loss."""

    def __init__(self, uses: Any, **rest: Any):
        super().__init__(**rest)
        self.uses = list(uses)

    def model(self) -> nn.Module:
        return Parameters(a=[1.0] * 3, b=[1.0] * 3, s=1.0, always=[0.0])

    def train_data(self) -> list[str]:
        return self.uses

    def collate(self, items: list[str]) -> list[str]:
        return items

    def loss(self, model: Any, batch: list[str]) -> tuple[Tensor, float]:
        total = model.always.sum()
        for names in batch:
            for name in names:
                total = total + ((getattr(model, name) ** 2).sum() if name != "!" else float("inf"))
        return total, float(len(batch))


class Draws(Probe):
    """The loss of a micro-batch is what it drew: in the model (`where="model"`) or in the dataset ("item"),
    from the generator `kind`: "torch", "numpy", "python", or "dropout" in the model. Nothing is learnt."""

    def __init__(
        self, items: int, where: str = "model", kind: str = "torch", evaluated: int | None = None, **rest: Any
    ):
        super().__init__(**rest)
        self.count, self.where, self.kind, self.evaluated = items, where, kind, evaluated

    def model(self) -> nn.Module:
        return Parameters(w=0.0)

    def train_data(self) -> Any:
        return Drawing(self.count, self.kind if self.where == "item" else None)

    def eval_data(self) -> Any:
        return None if self.evaluated is None else Drawing(self.evaluated, self.kind if self.where == "item" else None)

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        drawn = batch.sum()
        if self.where == "model":
            drawn = drawn + sum(draw(self.kind) for _ in batch)
        return model.w + drawn, float(len(batch))


class Drawing:
    """Items of 0.0, or of what a generator gives."""

    def __init__(self, count: int, kind: str | None):
        self._count, self._kind = count, kind

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> float:
        return draw(self._kind) if self._kind else 0.0


def draw(kind: str) -> float:
    """One number from the generator that `kind` names."""
    import random

    import numpy as np

    if kind == "dropout":  # of 64 ones; the sum tells masks apart
        ones = torch.arange(64, dtype=torch.float64)
        return float(nn.functional.dropout(ones, 0.5).sum())
    return {
        "torch": lambda: float(torch.rand((), dtype=torch.float64)),
        "numpy": np.random.rand,
        "python": random.random,
    }[kind]()


class Holder(Probe):
    """Holds `megabytes[i]` MiB in the forward of item i."""

    def __init__(self, megabytes: Any, **rest: Any):
        super().__init__(**rest)
        self.megabytes = list(megabytes)

    def model(self) -> nn.Module:
        return Parameters(w=1.0)

    def train_data(self) -> list[int]:
        return self.megabytes

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        held = torch.ones(int(batch[0]) * 2**18)
        return model.w * held.mean(), float(len(batch))


class Stream(Ids):
    """Twelve items that can only be iterated over."""

    def train_data(self) -> Any:
        return _Twelve()


class _Twelve(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(12))


class Short(Ids):
    """On rank `rank`, reading item `item` ends the data, or raises the error `raises`."""

    def __init__(self, items: int, item: int, rank: int, raises: str = "StopIteration", **rest: Any):
        super().__init__(items, **rest)
        self.item, self.rank, self.raises = item, rank, raises

    def train_data(self) -> Any:
        return _Ending(self.count, self.item if int(os.environ["RANK"]) == self.rank else None, self.raises)


class _Ending:
    def __init__(self, count: int, end: int | None, raises: str):
        self._count, self._end = count, end
        self._error = {"StopIteration": StopIteration, "ValueError": ValueError}[raises]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        if index == self._end:
            raise self._error("no more")
        return index


def halves(done: int, updates: int, every: int = 2) -> float:
    """A schedule: the factor is halved after every `every` updates, and the last quarter of them stands still."""
    return 0.5 ** (min(done, updates * 3 // 4) // every)


class Normalized(Probe):
    """A model with running statistics."""

    def model(self) -> nn.Module:
        return nn.BatchNorm1d(3)

    def train_data(self) -> Tensor:
        return torch.arange(24.0).view(8, 3)

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return model(batch).square().sum(), float(len(batch))


class Unordered(Probe):
    """An operation that torch has no deterministic form of."""

    def model(self) -> nn.Module:
        return Parameters(w=torch.ones(3, 3, 3))

    def train_data(self) -> list[int]:
        return [0] * 8

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        return nn.functional.max_unpool1d(model.w, torch.zeros(3, 3, 3, dtype=torch.int64), 3).sum(), float(len(batch))


class Reentrant(Probe):
    """A parameter that is used inside a reentrant checkpoint and outside of it: its gradient comes in two parts."""

    def model(self) -> nn.Module:
        return Parameters(w=[1.0] * 128)

    def train_data(self) -> Tensor:
        return torch.ones(8, 128)

    def loss(self, model: Any, batch: Tensor) -> tuple[Tensor, float]:
        from torch.utils.checkpoint import checkpoint

        inner = checkpoint(lambda x: x * model.w, batch * model.w, use_reentrant=True)
        return inner.sum(), float(len(batch))


class Network(Probe):
    """Two layers with dropout between them; the items are fixed random vectors."""

    def __init__(self, items: int, **rest: Any):
        super().__init__(**rest)
        self.count = items

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def train_data(self) -> Any:
        drawn = torch.Generator().manual_seed(0)
        inputs, targets = torch.randn(self.count, 4, generator=drawn), torch.randint(3, (self.count,), generator=drawn)
        return list(zip(inputs, targets, strict=True))

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, float]:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), float(len(batch[1]))
