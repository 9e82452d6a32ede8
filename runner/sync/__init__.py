"""How the gradients of a window are summed over its micro-batches and processes.

Whatever the policy, after `finish` every parameter's gradient is the sum of the losses' gradients in the
window, or that sum divided by `averaged_over`; the window's loss total and weight come with it.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from runner.plan import Plan
from runner.precision import Precision
from runner.schema import SeedingMode
from runner.sync.objective import Objective
from runner.task import Adopted
from runner.world import World


class Sync(Protocol):
    """One window after another: `forward` and `backward` for every pass, then `finish`.

    `collectives` and `bytes` count what this process has handed to reductions since it began.
    """

    collectives: int
    bytes: int
    averaged_over: int  # the gradients after `finish` are the sum divided by this

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        """The loss total and the weight of a micro-batch; of None, zeros. `last` ends this process's window."""

    def backward(self, total: Tensor, last: bool) -> None: ...

    def finish(self) -> tuple[Tensor, Tensor]:
        """The window's loss total and weight, summed over all micro-batches and processes."""


def open_sync(plan: Plan, world: World, task: Adopted, model: nn.Module, precision: Precision) -> Sync:
    """The summation that the plan asks for."""
    objective = Objective(task, model, precision)
    if plan.config.seeding.mode is SeedingMode.bitwise:
        from runner.sync.tree import Tree

        return Tree(objective, world.rank, world.size, plan.arithmetic.accum)
    if precision.weights != precision.sums:
        from runner.sync.tree import Line

        return Line(objective, world.rank, world.size, plan.arithmetic.accum)
    if world.size == 1:
        from runner.sync.single import Single

        return Single(objective)
    from runner.sync.ddp import Ddp

    return Ddp(objective, plan.config.sync.policy, world.size)
