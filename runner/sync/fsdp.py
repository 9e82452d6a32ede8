"""Several processes, each with a share of the model: torch's fully_shard (FSDP2), or several such copies (HSDP).

    accumulate, no_sync, backward_only   the gradient of the whole model stays on every process until the window's
                                         last micro-batch, and is reduced there: fewer bytes, more memory
    every_batch                          every micro-batch's gradient is reduced, and only a share of it kept
    accumulate_local                     (several copies) inside a copy as every_batch, between copies once in a window

fully_shard looks at what is wanted in the backward, so a context around the backward alone is in time here.
The weights are gathered in every forward and backward whatever the policy, so every process needs every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from runner.choices import SyncPolicy
from runner.precision import is_shared
from runner.sync.local import local, norm_of
from runner.sync.objective import Objective
from runner.sync.shares import Beside, keep_wide
from runner.world import World


@dataclass(slots=True)
class Sent:
    """What this process took part in. The bytes of a collective are those of the whole buffer: gathered, or to be reduced."""

    collectives: int = 0
    reductions: int = 0
    bytes: int = 0

    def add(self, buffer: Tensor, reduces: bool) -> None:
        self.collectives += 1
        self.reductions += reduces
        self.bytes += buffer.numel() * buffer.element_size()


class Fsdp:
    """Gradients are summed, never averaged. `stand_in` makes a batch for a process that has none: a sharded model
    runs on all processes or on none, so it computes with weight zero."""

    averaged_over = 1

    def __init__(
        self, objective: Objective, policy: SyncPolicy, world: World, copy_size: int, device: torch.device,
        blocks: list[nn.Module], stand_in: Callable[[], Any],
    ):  # fmt: skip
        self._objective, self._policy, self._stand_in = objective, policy, stand_in
        self._sent = Sent()
        self._copies = world.size // copy_size
        scalars = [p for p in objective.model.parameters() if not p.ndim]  # cannot be cut: every process holds them
        self._scalars = [p for p in scalars if p.requires_grad]
        for parameter in (apart := [objective.carrier, *scalars]):
            parameter.data = parameter.data.to(device)
        wide = objective.carrier.dtype
        narrow = any(p.is_floating_point() and p.dtype != wide for p in objective.model.parameters())
        self._beside = Beside(self._scalars, wide) if narrow else None
        reduced = MixedPrecisionPolicy(reduce_dtype=wide) if narrow else MixedPrecisionPolicy()
        self._root = _Root(objective)
        mesh = world.mesh(device.type, copy_size)
        for module in [*blocks, self._root]:
            self._control = fully_shard(module, mesh=mesh, ignored_params=set(apart), mp_policy=reduced)
            if narrow:
                keep_wide(self._control, wide)
            self._prepare(self._control)  # in the end, that of the root

    @property
    def collectives(self) -> int:
        return self._sent.collectives

    @property
    def reductions(self) -> int:
        return self._sent.reductions

    @property
    def bytes(self) -> int:
        return self._sent.bytes

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        if batch is not None:
            return self._root(self._objective, batch)  # type: ignore[no-any-return]
        total, _ = self._root(self._objective.compute, self._stand_in())
        return total * 0.0, 0.0

    def backward(self, total: Tensor, last: bool) -> None:
        local_only = self._policy is SyncPolicy.accumulate_local
        self._control.set_requires_gradient_sync(last or local_only or self._policy is SyncPolicy.every_batch)
        if local_only:  # after it: the line above sets both
            self._control.set_requires_all_reduce(last)
        total.backward()  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        raise NotImplementedError("a sharded model's processes meet inside every forward and backward")

    def reset(self) -> None:
        self._objective.take()

    def finish(self) -> tuple[Tensor, Tensor]:
        """One small reduction brings the window's sums, and the gradients of the parameters that every process holds."""
        sums = self._objective.take()
        values = torch.stack([*sums, *self._own()]).to(torch.float64)
        dist.all_reduce(values)
        self._sent.add(values, reduces=True)
        for parameter, value in zip(self._scalars, values[2:], strict=True):
            if self._beside is not None:
                parameter.summed = value.to(sums.dtype)  # type: ignore[attr-defined]
            else:
                parameter.grad = value.to(parameter.dtype)
        total, weight = values[:2].to(sums.dtype)
        return total, weight

    def _own(self) -> list[Tensor]:
        """This process's gradients of parameters that all hold."""
        if self._beside is not None:
            return self._beside.take()
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._scalars]

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Every process gets the same bits, so all decide alike by it."""
        shares = [local(g) for g in gradients if is_shared(g)]
        square = norm_of(shares).to(torch.float64) ** 2 if shares else gradients[0].new_zeros((), dtype=torch.float64)
        dist.all_reduce(square)
        self._sent.add(square, reduces=False)
        square = square / self._copies
        if whole := [g for g in gradients if not is_shared(g)]:
            square = square + norm_of(whole).to(torch.float64) ** 2
        return square.sqrt().to(gradients[0].dtype)

    def agree(self, flag: Tensor) -> Tensor:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        self._sent.add(flag, reduces=False)
        return flag

    def call(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        try:
            return self._root(function, self._objective.model, batch)
        finally:
            self._control.reshard()  # the backward, which would do it, does not follow

    def alike(self) -> AbstractContextManager[None]:
        return nullcontext()

    def conclude(self) -> None:
        pass  # the weights never part

    def _prepare(self, module: FSDPModule) -> None:
        """Sum in place of averaging, have zero for what a micro-batch did not use, count what is sent."""
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        module.set_reduce_scatter_unused_params(True, recurse=False)
        module.set_custom_all_gather(_Gather(self._sent))
        module.set_custom_reduce_scatter(_Scatter(self._sent))
        if self._copies > 1:  # called after each reduction between copies
            module.set_all_reduce_hook(lambda buffer: self._sent.add(buffer, reduces=True))


class _Root(nn.Module):
    """What is sharded at the top: anything that uses the model is called through it, with the weights in place."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class _Gather(DefaultAllGather):
    def __init__(self, sent: Sent):
        self._sent = sent

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._sent.add(output_tensor, reduces=False)
        return super().__call__(output_tensor, input_tensor, group, async_op)


class _Scatter(DefaultReduceScatter):
    def __init__(self, sent: Sent):
        self._sent = sent

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work:
        self._sent.add(input_tensor, reduces=True)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)
