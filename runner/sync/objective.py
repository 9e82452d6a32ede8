"""The task's loss as a module: what DDP wraps, so that a task may use its model in any way it likes.

The window's loss total and weight travel as the gradient of a parameter of their own, `carrier`, in the same
reduction as the model's gradients: one collective brings both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.plan import CARRIER_ELEMENTS
from runner.precision import Precision
from runner.task import Adopted, check_loss


class Objective(nn.Module):
    """Forward: a batch -> (loss total, weight). With `carrying` set, also ready for a reduction."""

    def __init__(self, task: Adopted, model: nn.Module, precision: Precision):
        super().__init__()
        self.model = model
        self._task, self._precision = task, precision
        first = next((p for p in model.parameters() if p.requires_grad), None)
        device = first.device if first is not None else torch.device("cpu")
        self.carrier = nn.Parameter(torch.zeros(CARRIER_ELEMENTS, dtype=precision.sums, device=device))
        self.carrying = 0  # what the sums are multiplied by on their way; 0: nothing travels with this micro-batch
        self._pending: list[tuple[Tensor, Tensor | float]] = []

    def forward(self, batch: Any) -> tuple[Tensor, Tensor | float]:
        total: Tensor
        weight: Tensor | float
        if batch is None:
            total, weight = self.carrier.new_zeros(()), 0.0
        else:
            total, weight = self.compute(batch)
            if isinstance(weight, Tensor):
                weight = weight.detach().clone()  # it is read later, and a task may reuse it
            self._pending.append((total.detach(), weight))
        if self.carrying:
            total = _Carry.apply(total, self.take() * self.carrying, self.carrier, *self.model.parameters())  # type: ignore[no-untyped-call]
        return total, weight

    def compute(self, batch: Any) -> tuple[Tensor, Tensor | float]:
        """The loss total and the weight of a batch that does not count."""
        with self._precision.forward():
            return check_loss(self._task.loss(self.model, batch), self._task.name)

    def take(self) -> Tensor:
        """The sums of the totals and weights since the last call, shape (2,), on the device."""
        pending, self._pending = self._pending, []
        if not pending:
            return self.carrier.new_zeros(CARRIER_ELEMENTS)
        kind = self.carrier.dtype
        total = torch.stack([t.to(kind) for t, _ in pending]).sum()
        on_device = [w.reshape(()).to(kind) for _, w in pending if isinstance(w, Tensor)]
        known = float(sum(w for _, w in pending if not isinstance(w, Tensor)))
        weight = torch.stack(on_device).sum() + known if on_device else total.new_full((), known)
        return torch.stack((total, weight))


class _Carry(torch.autograd.Function):
    """Passes `total` on. In backward, `sums` becomes the carrier's gradient and every parameter is touched.

    A parameter is touched with no gradient at all: that costs nothing, but DDP hears of every parameter in every
    reduction, also of those that this micro-batch did not use, and never waits for one in vain.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor, sums: Tensor, _carrier: Tensor, *parameters: Tensor) -> Tensor:
        ctx.sums, ctx.count = sums, len(parameters)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (gradient, None, ctx.sums, *(None,) * ctx.count)
