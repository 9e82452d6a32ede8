"""Every process makes its own updates; their weights are averaged every few of them. Fewer bytes, other mathematics.

The first `start` windows are reduced as `accumulate` does. From then on a process takes its own gradient times the number of
processes, over the weight of the whole window: the mean of these over the processes is the window's gradient, so with plain SGD and an
average after every update nothing would change. What all must agree on is still shared in each window, in one collective of
24 bytes: the loss total, the weight, and the size of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from runner.choices import SyncPolicy
from runner.schema import Sync as Settings
from runner.sync.ddp import Ddp
from runner.sync.local import norm_of
from runner.sync.objective import Objective
from runner.sync.wire import Wire
from runner.sync.wired import Unrepeated


class LocalSgd(Unrepeated):
    """`grad_norm` of a local window is the root mean square of the processes' own; clipping scales all of them alike by it."""

    def __init__(self, objective: Objective, settings: Settings, processes: int, bucket_bytes: int, wire: Wire):
        assert settings.every is not None and settings.start is not None
        self._objective, self._processes, self._wire = objective, processes, wire
        self._every, self._exact_left = settings.every, settings.start
        self._exact = Ddp(objective, SyncPolicy.accumulate, processes, bucket_bytes, wire) if settings.start else None
        self._parameters = [p for p in objective.model.parameters() if p.requires_grad]
        self._since = 0  # local updates since the weights were alike
        self._opening = True
        self._idle = False
        self._reduced = 0
        self._norm = torch.zeros(())
        self.averaged_over = 1 if self._exact else processes

    @property
    def reductions(self) -> int:
        return self._exact.reductions if self._exact else self._reduced

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        if self._exact and not self._exact_left:
            self._part()
        if self._exact:
            return self._exact.forward(batch, last)
        if self._opening and self._since == self._every:
            self.conclude()
        self._opening, self._idle = False, batch is None
        return self._objective(batch)  # type: ignore[no-any-return]

    def _part(self) -> None:
        """From here on every process goes its own way. DDP and its buckets are let go."""
        assert self._exact is not None
        self._reduced = self.reductions
        self._exact.release()
        self._exact, self.averaged_over = None, self._processes
        self._objective.carrying = 0

    def backward(self, total: Tensor, last: bool) -> None:
        if self._exact:
            self._exact.backward(total, last)
        elif not self._idle:
            total.backward()  # type: ignore[no-untyped-call]

    def finish(self) -> tuple[Tensor, Tensor]:
        if self._exact:
            sums = self._exact.finish()
            self._exact_left -= 1
            return sums
        self._wire.close()
        own = self._objective.take()
        gradients = [p.grad for p in self._parameters if p.grad is not None and not p.grad.is_sparse]
        square = norm_of(gradients).to(torch.float64) ** 2 if gradients else own.new_zeros((), dtype=torch.float64)
        shared = torch.cat((own.to(torch.float64), square.reshape(1)))
        self._wire.tell(shared).wait()
        total, weight, square = shared
        self._norm = (square / self._processes).sqrt().to(own.dtype)
        self._since, self._opening = self._since + 1, True
        return total.to(own.dtype), weight.to(own.dtype)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return super().norm(gradients) if self._exact else self._norm

    @contextmanager
    def alike(self) -> Iterator[None]:
        if not self._since:
            yield
            return
        own, since = [p.detach().clone() for p in self._parameters], self._since
        self.conclude()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip(self._parameters, own, strict=True):
                    parameter.copy_(before)
            self._since = since

    @torch.no_grad()
    def conclude(self) -> None:
        if not self._since:
            return
        self._since = 0
        kinds = dict.fromkeys(p.dtype for p in self._parameters)
        for kind in kinds:
            mine = [p for p in self._parameters if p.dtype is kind]
            whole = torch.cat([p.reshape(-1) for p in mine])
            self._wire.send(whole).wait()
            whole /= self._processes
            for parameter, mean in zip(mine, torch.split(whole, [p.numel() for p in mine]), strict=True):
                parameter.copy_(mean.view_as(parameter))
