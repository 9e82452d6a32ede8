"""One process: gradients add up where they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from runner.sync.objective import Objective
from runner.sync.whole import Whole


class Single(Whole):
    """Nothing is sent."""

    collectives = 0
    reductions = 0
    bytes = 0
    averaged_over = 1

    def __init__(self, objective: Objective):
        self._objective = objective

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        return self._objective(batch)  # type: ignore[no-any-return]

    def backward(self, total: Tensor, last: bool) -> None:
        total.backward()  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        """Nobody waits."""

    def reset(self) -> None:
        self._objective.take()

    def finish(self) -> tuple[Tensor, Tensor]:
        total, weight = self._objective.take()
        return total, weight
