"""Evaluation, exact over processes: every item counts once, whatever the number of processes.

The items are cut into batches of `per_device`, the same batches for every number of processes; each process takes
a contiguous share of them, and their sums are added up without any rounding before the last. Training's streams and the model's mode are left as they were.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import fsum, inf, isnan
from typing import Any

import torch
from torch import Tensor, nn

from runner import records
from runner.data import Items, check_dataset, load
from runner.errors import TaskError
from runner.plan import Plan
from runner.precision import Precision
from runner.records import EvalRow
from runner.replicas import Buffers
from runner.rundir import RunFolder
from runner.seeding import Streams
from runner.sync import Sync
from runner.task import Adopted, check_loss, check_metrics
from runner.window import Window
from runner.world import World

Terms = dict[str, tuple[list[float], list[float]]]  # by name: every batch's sum, and its weight


class Evaluation:
    """When to evaluate, how, and whether to stop for what came out of it."""

    def __init__(
        self, plan: Plan, world: World, folder: RunFolder, task: Adopted, model: nn.Module, sync: Sync,
        buffers: Buffers, streams: Streams, precision: Precision, device: torch.device,
    ):  # fmt: skip
        self._plan, self._world, self._folder, self._task, self._model = plan, world, folder, task, model
        self._sync = sync
        self._streams, self._precision, self._device = streams, precision, device
        self._buffers = buffers
        self._data = task.eval_data()
        if self._data is None and plan.config.early_stop.metric is not None:
            raise TaskError(f"early_stop.metric needs something to evaluate on, and {task.name}.eval_data returns None")
        self._count = check_dataset(self._data, "eval_data()") if self._data is not None else 0
        if self._data is not None and not self._count:
            raise TaskError(
                f"{task.name}.eval_data returned no items; return None where there is nothing to evaluate on"
            )
        self._best: float | None = None
        self._waited = 0
        self._done_at = -1

    def rehearse(self) -> None:
        """Evaluate one batch before training and forget the result: what is wrong with it should not show at the end.

        Raises TaskError.
        """
        if self._data is None:
            return
        with self._evaluating(0):
            found = self._terms(0, islice(self._batches(), 1))
        metric = self._plan.config.early_stop.metric
        if metric is not None and found and metric not in found:
            raise _no_metric(metric, found)

    def due(self, window: Window) -> bool:
        """Whether to evaluate after this window."""
        every = self._plan.config.eval.every
        if self._data is None or every is None:
            return False
        if isinstance(every, int):
            return window.update % every == 0
        epochs = int(re.match(r"\d+", every)[0])  # type: ignore[index]
        return window.last_of_epoch and window.epoch % epochs == 0

    def run(self, update: int, epoch: int) -> bool:
        """Evaluate after `update` updates and record it. Returns whether training should stop.

        Every process gets the same sums, so all of them decide alike.
        """
        if self._data is None or self._done_at == update:
            return False
        self._done_at = update
        row = self._evaluate(update, epoch)
        if self._world.rank == 0:
            records.append(self._folder.evals, [row])
        return self._should_stop(row)

    def _evaluate(self, update: int, epoch: int) -> EvalRow:
        with self._evaluating(update):
            mine = self._terms(update, self._batches())
        sums = _add(self._world.gather(mine))
        means = {name: total / weight if weight else None for name, (total, weight) in sums.items()}
        weight = sums.get("loss", (0.0, 0.0))[1]
        return EvalRow(update, epoch, means.pop("loss", None), weight, means)

    @contextmanager
    def _evaluating(self, update: int) -> Iterator[None]:
        """The model as it is evaluated; everything is put back afterwards."""
        modes = [(module, module.training) for module in self._model.modules()]  # a task may have frozen some
        with (
            self._sync.alike(),
            self._buffers.of_rank_zero(self._world),
            torch.no_grad(),
            self._streams.aside("eval", update),
        ):
            self._model.eval()
            try:
                yield
            finally:
                for module, mode in modes:
                    module.training = mode

    def _terms(self, update: int, batches: Iterable[tuple[int | None, Any]]) -> Terms:
        """This process's share of what is to be added up."""
        found: dict[str, list[tuple[Tensor | float, Tensor | float]]] = defaultdict(list)
        for number, batch in batches:
            if self._streams.exact and number is not None:
                self._streams.micro_batch(-update, number)  # no training update has a negative number
            with self._precision.forward():
                loss = check_loss(self._sync.call(self._task.loss, batch), self._task.name)
                metrics = check_metrics(self._sync.call(self._task.metrics, batch), self._task.name)
                if number is None:
                    continue
                found["loss"].append(loss)
                for name, pair in metrics.items():
                    found[name].append(pair)
        return {name: (_read(p[0] for p in pairs), _read(p[1] for p in pairs)) for name, pairs in found.items()}

    def _batches(self) -> Any:
        """This process's batches, each with its number in the whole evaluation; None for one that does not count."""
        size, seed = self._plan.arithmetic.per_device, self._plan.config.seed
        batches = [(0, tuple(range(i, min(i + size, self._count)))) for i in range(0, self._count, size)]
        share = -(-len(batches) // self._world.size)
        first = self._world.rank * share
        mine = batches[first : first + share]
        numbers: list[int | None] = list(range(first, first + len(mine)))
        if batches and self._plan.config.hardware.sharded:  # which runs on all processes or on none
            numbers += [None] * (share - len(mine))
            mine += [batches[0]] * (share - len(mine))
        items = Items(self._data, self._task.collate, seed, "eval item", self._streams.exact)
        floats = self._precision.weights if self._precision.casts_inputs else None
        workers = min(self._plan.config.data.workers, len(mine))
        return zip(numbers, load(items, mine, workers, seed, self._device, floats, self._world.rank), strict=True)

    def _should_stop(self, row: EvalRow) -> bool:
        stop = self._plan.config.early_stop
        if stop.metric is None:
            return False
        values = {"loss": row.loss, **row.metrics}
        if stop.metric not in values:
            raise _no_metric(stop.metric, values)
        value = values[stop.metric]
        if value is None or isnan(value):
            value = stop.mode.sign * inf  # worse than anything
        if self._best is None or stop.mode.sign * (self._best - value) > stop.min_delta:
            self._best, self._waited = value, 0
            return False
        self._waited += 1
        return self._waited > stop.patience


def _no_metric(name: str, known: Iterable[str]) -> TaskError:
    return TaskError(f"early_stop.metric={name}: the evaluation has {', '.join(known)}")


def _read(values: Iterable[Tensor | float]) -> list[float]:
    """Values as numbers; tensors are read from their device at once."""
    found = list(values)
    tensors = [v.detach().to(torch.float64).reshape(()) for v in found if isinstance(v, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(numbers) if isinstance(v, Tensor) else float(v) for v in found]


def _add(shares: list[Terms]) -> dict[str, tuple[float, float]]:
    """The sums over all processes: the same to the last bit, however the terms are spread over them."""
    names = dict.fromkeys(name for share in shares for name in share)
    return {n: (_sum(s[n][0] for s in shares if n in s), _sum(s[n][1] for s in shares if n in s)) for n in names}


def _sum(lists: Iterable[list[float]]) -> float:
    terms = [term for terms in lists for term in terms]
    try:
        return fsum(terms)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return sum(terms)
