"""What every summation has in common whose processes hold the whole model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from runner.sync.local import norm_of
from runner.sync.objective import Objective


class Whole:
    """Each process holds all weights, and after a window the whole gradient."""

    _objective: Objective

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return norm_of(gradients)

    def agree(self, flag: Tensor) -> Tensor:
        return flag

    def call(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        return function(self._objective.model, batch)

    def alike(self) -> AbstractContextManager[None]:
        return nullcontext()

    def conclude(self) -> None:
        pass  # the weights never part
