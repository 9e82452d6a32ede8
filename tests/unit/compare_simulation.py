"""Runs for the truth table: the runner's own, in this process; and a second trainer that can be broken on purpose.

`Simulated` computes what a plan of several processes asks for in one process, rank after rank, with the runner's own
windows, streams, schedule and row types. Unbroken it must agree with the runner itself (a test holds it to that); the
subclasses in `compare_faults` have one fault each.
"""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from runner import records, rundir, worker
from runner.backend.cpu import Cpu
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.data import Items
from runner.evaluation import Evaluation
from runner.loop import average_and_clip, gradient
from runner.plan import Plan
from runner.precision import Precision
from runner.records import BatchRow, UpdateRow
from runner.replicas import Buffers
from runner.rundir import RunFolder
from runner.schedule import Schedule, make_optimizer
from runner.seeding import Streams
from runner.sync.local import norm_of
from runner.sync.objective import Objective
from runner.sync.single import Single
from runner.task import Task
from runner.tasks.digits import Digits
from runner.window import Window
from runner.world import World

BASE = ("budget.updates=60", "optim=sgd", "optim.lr=0.5", "schedule.warmup=4")


class Net(Digits):
    """Digits with a small network that is quick to train."""

    def __init__(self, dropout: float = 0.0, norm: bool = False):
        super().__init__(dropout=dropout)
        self.norm = norm

    def model(self) -> nn.Module:
        middle = [nn.BatchNorm1d(32)] if self.norm else []
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), *middle, nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(32, 10)
        )

    def sizes(self) -> None:
        return None


class Tokens(Task):
    """Sequences of different lengths: the weight is the number of tokens."""

    def __init__(self, items: int = 200):
        state = np.random.RandomState(5)
        self.rows = [torch.from_numpy(state.randint(0, 12, state.randint(2, 12))) for _ in range(items)]

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 16), nn.Tanh(), nn.Linear(16, 12))

    def train_data(self) -> Any:
        return self.rows

    def collate(self, items: list[Any]) -> Any:
        return nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=-1)

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
        inputs, targets = batch[:, :-1].clamp(min=0), batch[:, 1:]
        total = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        return total, float((targets >= 0).sum())


@cache
def plan_of(*overrides: str, task: str = "Net") -> Plan:
    return compose_one(parse(["task=custom", f"task._target_={__name__}.{task}", *BASE, *overrides]))


def real(folder: Path, *overrides: str, task: str = "Net", disturb: bool = False) -> Path:
    """The runner's own training, as one process."""
    plan = plan_of(*overrides, task=task).model_copy(update={"disturb": disturb})
    run = _folder(folder, plan)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        worker.run(plan, run, World(0, 1), Cpu())
    finally:
        torch.set_num_threads(threads)
    run.write_status("finished")
    return folder


def _folder(path: Path, plan: Plan) -> RunFolder:
    run = rundir.create(path, plan, "", "")
    run.write_status("running", pid=os.getpid(), host=socket.gethostname(), started=time.time())
    return run


class Simulated:
    """All ranks of a plan, one after another. Subclasses break one step each."""

    remainder: str | None = None

    def __init__(self, folder: Path, *overrides: str, task: str = "Net"):
        plan = plan_of(*overrides, task=task)
        self.folder = _folder(folder, plan)
        self.precision, backend = Precision(plan.config.precision.name, "cpu"), Cpu()
        made = worker.make_experiment(plan, self.precision, backend)
        self.plan = worker.complete(plan, World(0, 1), made)
        rundir.write_text(self.folder.plan, self.plan.to_json())
        self.task, self.model, self.ranks = made.task, made.model, self.plan.arithmetic.processes
        config = self.plan.config
        exact = config.seeding.mode.value == "exact"
        self.items = Items(made.data, self.task.collate, config.seed, "item", exact)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(config, self.plan.arithmetic.lr, self.parameters)
        self.schedule = Schedule(self.optimizer, config, self.plan.windows().updates)
        self.streams = Streams(config.seed, exact, 0, torch.device("cpu"))
        self.evaluation = Evaluation(
            self.plan,
            World(0, 1),
            self.folder,
            self.task,
            self.model,
            Single(Objective(self.task, self.model, self.precision)),
            Buffers(self.model),
            self.streams,
            self.precision,
            torch.device("cpu"),
        )
        self.train()

    def train(self) -> None:
        window = None
        for window in self.windows():
            self.update(window)
            if self.evaluation.due(window):
                self.evaluate(window)
        self.evaluation.run(window.update, window.epoch)
        self.folder.write_status("finished")

    def windows(self) -> Any:
        return self.plan.windows()

    def evaluate(self, window: Window) -> None:
        self.evaluation.run(window.update, window.epoch)

    def update(self, window: Window) -> None:
        rows: list[BatchRow] = []
        sums = torch.zeros(2)
        for rank in range(self.ranks):
            for micro in window.passes(rank, every=False):
                if micro.ids:
                    total, weight, row = self.micro_batch(window, rank, micro)
                    rows.append(row)
                    sums += torch.tensor([float(total), float(weight)])
        lr = self.schedule.lr
        norm = self.average(sums[1], window)
        self.step(window)
        self.optimizer.zero_grad()
        records.append(self.folder.batches, rows)
        row = UpdateRow(
            window.update, window.epoch, float(sums[0] / sums[1]), float(sums[1]), lr, float(norm), 0.01,
            len(window.ids), window.digest, 0, 0, False, None, 1,
        )  # fmt: skip
        self.log(row, rows)
        records.append(self.folder.updates, [row])

    def micro_batch(self, window: Window, rank: int, micro: Any) -> tuple[torch.Tensor, float, BatchRow]:
        began = time.perf_counter()
        batch = self.items[window.epoch, micro.ids]
        self.start_stream(window, rank, micro.index)
        with self.precision.forward():
            total, weight = self.task.loss(self.model, batch)
        self.backward(total, weight, window, rank)
        seconds = time.perf_counter() - began
        total = total.detach()
        loss = float(total) / weight
        return (
            total,
            weight,
            BatchRow(window.update, micro.index, rank, window.epoch, loss, weight, seconds, micro.last),
        )

    def start_stream(self, window: Window, rank: int, index: int) -> None:
        self.streams.micro_batch(window.update, index)

    def backward(self, total: torch.Tensor, weight: float, window: Window, rank: int) -> None:
        total.backward()

    def average(self, weight: torch.Tensor, window: Window) -> torch.Tensor:
        return average_and_clip(self.gradients(), weight, self.plan.config.optim.clip, norm_of)

    def gradients(self) -> list[torch.Tensor]:
        return [gradient(p) for p in self.parameters]

    def step(self, window: Window) -> None:
        self.optimizer.step()
        self.schedule.advance()

    def log(self, row: UpdateRow, rows: list[BatchRow]) -> None:
        """What is written down of an update."""
