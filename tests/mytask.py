"""The tasks that the tests of the command line train, copied into the folder that a command is started in.

Small enough for a run to be little more than its start and its end.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset


class MyTask:
    """A linear model on random items. The keys make it slow, late, talkative, or make it fail on one rank."""

    def __init__(
        self, width: int = 4, items: int = 16, pause: float = 0.0, late: float = 0.0, fail: str | None = None,
        path: str | None = None, say: str | None = None, **told: Any,
    ):  # fmt: skip
        self.width, self.items, self.pause, self.fail, self.path = width, items, pause, fail, path
        self.rank = int(os.environ["RANK"])
        if say is not None:
            print(f"{say} rank {self.rank} pid {os.getpid()} parent {os.getppid()}")
            print(f"told {json.dumps(told)}")  # which takes plain types only
            print(f"cpu seconds {time.process_time():.3f}", flush=True)
        if self.rank == 1:
            time.sleep(late)

    def model(self) -> nn.Module:
        return nn.Linear(self.width, 1)

    def train_data(self) -> list[Tensor]:
        if self.path is not None:
            value = float(Path(self.path).read_text())
            print(f"read {value}", flush=True)
            return [torch.full((self.width,), value) for _ in range(self.items)]
        return list(torch.randn(self.items, self.width))

    def eval_data(self) -> list[Tensor]:
        return list(torch.randn(5, self.width))

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        time.sleep(self.pause)
        if self.fail == f"rank{self.rank}":
            raise ValueError(f"the machine of rank {self.rank} is on fire")
        return model(batch).square().sum(), float(len(batch))

    def metrics(self, model: nn.Module, batch: Tensor) -> dict[str, tuple[Tensor, float]]:
        return {"positive": ((model(batch) > 0).float().sum(), float(len(batch)))}


class Breaking(MyTask):
    """Reading an item fails, in whatever process reads it."""

    class Items:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Tensor:
            if index == 9:
                raise OSError("the disk of item 9 is gone")
            return torch.zeros(4)

    def train_data(self) -> Any:
        return self.Items()


class Streaming(MyTask):
    """Its data have no items that could be named."""

    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(torch.randn(12, 4))

    def train_data(self) -> Any:
        return self.Stream()


class MeanOnly(MyTask):
    """Returns a mean, as most training scripts do, where the sum and its weight are asked for."""

    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        return model(batch).square().mean()


class Lossless:
    """Lacks a method."""

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def train_data(self) -> list[Tensor]:
        return list(torch.randn(16, 4))
