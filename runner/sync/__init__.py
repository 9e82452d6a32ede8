"""How the gradients of a window are summed over its micro-batches and processes.

Whatever the policy, after `finish` every parameter's gradient is the sum of the losses' gradients in the
window, or that sum divided by `averaged_over`; the window's loss total and weight come with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from runner.choices import CompressName, SeedingMode, SyncPolicy
from runner.plan import Plan
from runner.precision import Precision
from runner.sync.objective import Objective
from runner.task import Adopted
from runner.world import World


class Sync(Protocol):
    """One window after another: `forward` and `backward` for every pass, then `finish`.

    `collectives` and `bytes` count what this process has sent since it began; `reductions` are those among the
    collectives that sum gradients.
    """

    @property
    def collectives(self) -> int: ...
    @property
    def reductions(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    averaged_over: int  # the gradients after `finish` are the sum divided by this

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        """The loss total and the weight of a micro-batch; of None, zeros. `last` ends this process's window."""

    def backward(self, total: Tensor, last: bool) -> None: ...

    def finish(self) -> tuple[Tensor, Tensor]:
        """The window's loss total and weight, summed over all micro-batches and processes."""

    def abandon(self) -> None:
        """The window's passes were broken off by an error on this process: do its part, with nothing in it, in what the
        others still expect of this window. `finish` follows."""

    def reset(self) -> None:
        """After `finish`, on all processes: the window did not count, and starts again."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole gradient, of which a process may hold a share only."""

    def agree(self, flag: Tensor) -> Tensor:
        """The largest of all processes' flags, where each has seen a share of the gradient only; else `flag`."""

    def call(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        """`function(model, batch)`, with all weights in place; without a gradient."""

    def alike(self) -> AbstractContextManager[None]:
        """All processes with the same weights for a while, and with their own again afterwards."""

    def conclude(self) -> None:
        """Training is over: all processes have the same weights for good."""


def open_sync(
    plan: Plan, world: World, task: Adopted, model: nn.Module, precision: Precision, device: torch.device,
    stand_in: Callable[[], Any],
) -> Sync:  # fmt: skip
    """The summation that the plan asks for; a sharded model's parameters are others afterwards. `stand_in` makes a
    batch for a process that has none but must run the model."""
    objective = Objective(task, model, precision)
    if plan.config.seeding.mode is SeedingMode.bitwise:
        from runner.sync.tree import Tree

        return Tree(objective, world.rank, world.size, plan.arithmetic.accum)
    hardware, policy = plan.config.hardware, plan.config.sync.policy
    if precision.weights != precision.sums and not hardware.sharded:
        from runner.sync.tree import Line

        return Line(objective, world.rank, world.size, plan.arithmetic.accum)
    if world.size == 1:
        from runner.sync.single import Single

        return Single(objective)
    if hardware.sharded:
        from runner.sync.blocks import blocks_of
        from runner.sync.fsdp import Fsdp

        return Fsdp(objective, policy, world, hardware.copy_size, device, blocks_of(task, model), stand_in)
    from runner.sync.wire import wire_of

    compress, bucket, wire = plan.config.compress, plan.comm.bucket_bytes, wire_of(plan)
    if compress.name is CompressName.powersgd:
        from runner.sync.powersgd import PowerSgd

        return PowerSgd(objective, compress, world.size, wire, plan.config.seed)
    assert bucket is not None, "the plan has no sizes yet"
    if policy is SyncPolicy.local_sgd:
        from runner.sync.local_sgd import LocalSgd

        return LocalSgd(objective, plan.config.sync, world.size, bucket, wire)
    from runner.sync.ddp import Ddp

    return Ddp(objective, policy, world.size, bucket, wire)
