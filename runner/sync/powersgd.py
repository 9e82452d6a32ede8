"""Gradients sent as products of two narrow matrices (PowerSGD), with what is lost added to the next one.

    M = gradient / weight of the window + what was lost before       of each process; their sum over processes is wanted
    P = sum of M Q, made orthonormal                                 sent: rows x rank
    Q = sum of M^T P                                                 sent: columns x rank, and where the next update starts
    P Q^T takes the place of the sum; M - P Q^T / processes is lost

torch's hook for it (torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook) breaks on gloo with more than one bucket, since it starts
one collective from the end of another. Here all are started in order, after the backward: they are small. Losses of different windows are
kept per unit of weight, so that a short window does not take the share of a full one. A parameter with one dimension, or
whose factors would not be half as large as itself, is sent as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runner.keys import derive
from runner.schema import Compress
from runner.sync.objective import Objective
from runner.sync.wire import Wire
from runner.sync.wired import Unrepeated

WORTH = 2  # the factors must be so many times smaller than the matrix


@dataclass(slots=True)
class _Matrix:
    """A parameter that is sent as factors, in the shape of a matrix."""

    parameter: nn.Parameter
    rows: int
    columns: int
    right: Tensor  # Q
    lost: Tensor


class PowerSgd(Unrepeated):
    """One reduction in a window's last micro-batch, in three collectives."""

    averaged_over = 1

    def __init__(self, objective: Objective, settings: Compress, processes: int, wire: Wire, seed: int):
        assert settings.rank is not None and settings.start is not None
        self.reductions = 0
        self._objective, self._processes, self._wire = objective, processes, wire
        self._exact_left = settings.start
        self._matrices: list[_Matrix] = []
        self._others: list[nn.Parameter] = []
        generator = torch.Generator().manual_seed(derive(seed, "powersgd"))
        for parameter in objective.model.parameters():
            if parameter.requires_grad:
                self._adopt(parameter, settings.rank, generator)
        self._idle = False
        self._sums = objective.carrier.detach().clone()

    def _adopt(self, parameter: nn.Parameter, rank: int, generator: torch.Generator) -> None:
        rows = parameter.shape[0] if parameter.ndim > 1 else 1
        columns = parameter.numel() // rows if rows else 0
        rank = min(rank, rows, columns)
        if parameter.is_complex() or WORTH * rank * (rows + columns) > parameter.numel():
            self._others.append(parameter)
            return
        right = torch.randn(columns, rank, generator=generator).to(parameter)  # the same on all processes
        lost = torch.zeros(rows, columns, dtype=parameter.dtype, device=parameter.device)
        self._matrices.append(_Matrix(parameter, rows, columns, right, lost))

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        self._idle = batch is None
        return self._objective(batch)  # type: ignore[no-any-return]

    def backward(self, total: Tensor, last: bool) -> None:
        work = None
        if last:
            self._sums = self._objective.take()
            work = self._wire.tell(self._sums)  # on its way during the backward
        if not self._idle:
            total.backward()  # type: ignore[no-untyped-call]
        if work is not None:
            work.wait()
            self._exchange()

    def finish(self) -> tuple[Tensor, Tensor]:
        self._wire.close()
        total, weight = self._sums
        return total, weight

    @torch.no_grad()
    def _exchange(self) -> None:
        """Every parameter's gradient becomes the (approximate) sum over processes."""
        self.reductions += 1
        if self._exact_left:
            self._exact_left -= 1
            parameters = [*self._others, *(m.parameter for m in self._matrices)]
            self._share([_gradient(p) for p in parameters])
            return
        weight = self._sums[1]
        # a copy where the gradient is not contiguous (channels_last), so what it becomes is written to the gradient itself
        wanted = [_gradient(m.parameter).reshape(m.rows, m.columns) for m in self._matrices]
        scale = torch.where(weight > 0, 1 / weight, 0.0)
        whole = [g * scale + m.lost for g, m in zip(wanted, self._matrices, strict=True)]
        left = [w @ torch.linalg.qr(m.right).Q for w, m in zip(whole, self._matrices, strict=True)]
        finite = self._share([*(_gradient(p) for p in self._others), *left])
        left = [torch.linalg.qr(p.nan_to_num()).Q for p in left]
        right = [w.T @ p for w, p in zip(whole, left, strict=True)]
        self._share(right)
        # where a gradient is no number the window is left out, or the run stops; nothing of it must stay. Where the weight is 0
        # the product, times 0, is applied nowhere, so what was lost before still is
        counts = finite & (weight > 0)
        for m, w, p, q in zip(self._matrices, whole, left, right, strict=True):
            product = p @ q.T
            m.lost = torch.where(counts, w - product / self._processes, m.lost)
            m.right = torch.where(counts, q, m.right)
            gradient = _gradient(m.parameter)
            gradient.copy_(torch.where(finite, product * weight, torch.nan).view_as(gradient))

    def _share(self, tensors: list[Tensor]) -> Tensor:
        """Sum `tensors` over all processes, in place; whether all the sums are finite, the same on all processes."""
        if not tensors:
            return torch.ones((), dtype=torch.bool)
        finite = []
        for kind in dict.fromkeys(t.dtype for t in tensors):
            mine = [t for t in tensors if t.dtype is kind]
            flat = torch.cat([t.reshape(-1) for t in mine])
            self._wire.send(flat).wait()
            finite.append(flat.isfinite().all())
            for tensor, summed in zip(mine, torch.split(flat, [t.numel() for t in mine]), strict=True):
                tensor.copy_(summed.view_as(tensor))
        return torch.stack(finite).all()


def _gradient(parameter: nn.Parameter) -> Tensor:
    """A parameter's own gradient, zeros where this process's micro-batches did not use it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
