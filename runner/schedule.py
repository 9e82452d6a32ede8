"""Learning rates over the updates of a run: factors by which every parameter group's own rate is multiplied.

`done` counts the updates applied so far, over all processes: neither processes nor accumulation speed it up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import cos, pi
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from runner.build import build, locate
from runner.errors import TaskError
from runner.schema import Config, Constant, CustomSchedule, Decay, Step

Factor = Callable[[int], float]


class Schedule:
    """Sets the rates of an optimizer: `advance` after every update that was applied."""

    def __init__(self, optimizer: Optimizer, config: Config, updates: int):
        self._optimizer, self._done = optimizer, 0
        self._warmup = config.schedule.warmup
        self._theirs: LRScheduler | None = None
        self._factor: Factor = lambda _: 1.0
        self._follow(config, updates)
        self._base = [group["lr"] for group in optimizer.param_groups]
        self._apply()

    @property
    def lr(self) -> float:
        """The rate of the first parameter group for the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self) -> None:
        self._done += 1
        if self._theirs is not None:
            self._restore()
            self._theirs.step()
            self._base = [group["lr"] for group in self._optimizer.param_groups]
        self._apply()

    def _follow(self, config: Config, updates: int) -> None:
        schedule = config.schedule
        if not isinstance(schedule, CustomSchedule):
            self._factor = decay(schedule, updates)
        elif isinstance(found := locate(schedule.target), type) and issubclass(found, LRScheduler):
            self._theirs = build(schedule.target, self._optimizer, **schedule.arguments)
            _check_step(schedule.target, self._theirs)
        else:
            arguments = schedule.arguments
            self._factor = lambda done: float(found(done, updates, **arguments))

    def _apply(self) -> None:
        factor = self._factor(self._done) * min(1.0, (self._done + 1) / (self._warmup or 1))
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    def _restore(self) -> None:
        """Give torch's scheduler back the rates that it set: some compute the next one from the last."""
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base


def decay(schedule: Constant | Decay | Step, updates: int) -> Factor:
    """The factor of a built-in schedule after `done` of `updates` updates, warm-up apart.

    linear and cosine fall from 1, at the end of the warm-up, to `end` after the last update.
    """
    if isinstance(schedule, Constant):
        return lambda _: 1.0
    if isinstance(schedule, Step):
        every, gamma = schedule.every, schedule.gamma
        return lambda done: gamma ** (done // every)
    start, end = schedule.warmup, schedule.end
    length = max(1, updates - start)

    def factor(done: int) -> float:
        left = 1.0 - min(1.0, max(0, done - start) / length)
        if schedule.name == "cosine":
            left = (1.0 + cos(pi * (1.0 - left))) / 2
        return end + (1.0 - end) * left

    return factor


def make_optimizer(config: Config, lr: float, parameters: list[Any]) -> Optimizer:
    """The optimizer of the configuration, with the scaled learning rate `lr`."""
    import torch

    optim = config.optim
    if optim.name == "custom":
        made: Optimizer = build(optim.target, parameters, lr=lr, **optim.arguments)
        _check_step(optim.target, made)
        return made
    arguments = optim.model_dump(exclude={"name", "lr", "clip"})
    kind: Any = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optim.name]
    return kind(parameters, lr=lr, **arguments)  # type: ignore[no-any-return]


def _check_step(target: str, made: Any) -> None:
    """Raises TaskError for an optimizer or schedule whose step() needs an argument: a closure, a metric."""
    needed = [
        p.name
        for p in inspect.signature(made.step).parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    if needed:
        raise TaskError(
            f"{target}.step() needs {' and '.join(needed)}, which the loop cannot give it; choose one whose step() needs nothing"
        )
