"""Training, top to bottom: windows, their passes, the update. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from runner.choices import NonFinite
from runner.compilation import uncompiled
from runner.errors import TaskError
from runner.evaluation import Evaluation
from runner.losses import Losses
from runner.precision import Scaler
from runner.retry import Retry, out_of_memory
from runner.schedule import Schedule
from runner.seeding import Streams
from runner.sync import Sync
from runner.sync.local import local
from runner.sync.tree import summed
from runner.window import Window, Windows


@dataclass(slots=True)
class Training:
    """The parts of a run on one process, ready to go. `batches` yields this process's micro-batches in order."""

    rank: int
    windows: Windows
    batches: Generator[Any, None, None]
    streams: Streams
    sync: Sync
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: Scaler
    schedule: Schedule
    clip: float | None
    nonfinite: NonFinite
    losses: Losses
    evaluation: Evaluation
    before_last_evaluation: Callable[[], None]
    after_first: Callable[[], None]  # what can only be told once a window has gone through the model
    compiled: bool
    held: Callable[[], list[Tensor]]  # what memory holds between windows: weights, buffers, optimizer state
    every_pass: bool  # whether every micro-batch is reduced, so that all processes need as many passes
    retry: Retry | None = None  # where a window that runs out of memory is repeated

    def sent(self) -> tuple[int, int]:
        """Collectives and their bytes so far."""
        votes = (self.retry.collectives, self.retry.bytes) if self.retry is not None else (0, 0)
        return self.sync.collectives + votes[0], self.sync.bytes + votes[1]


def train(t: Training) -> int:
    """Train until the windows end or an evaluation says stop. Returns the number of windows done."""
    window = None
    for window in t.windows:
        update(t, window)
        if window.update == 1:
            t.after_first()
        if t.evaluation.due(window):
            t.losses.flush()
            if t.evaluation.run(window.update, window.epoch):
                break
    t.losses.flush()
    if window is None:
        return 0
    t.before_last_evaluation()
    t.evaluation.run(window.update, window.epoch)
    return window.update


def update(t: Training, window: Window) -> None:
    """One window: a forward and a backward for every pass of this process, one reduction, one optimizer update."""
    while True:
        if t.retry is not None:
            window = t.retry.begin(window)
        with t.losses.window(window.update, t.held):
            sent = t.sent()
            sums = _sum(t, window)
            if sums is not None:
                _step(t, window, sums, sent)
                return
        _start_over(t, window)


def _sum(t: Training, window: Window) -> tuple[Tensor, Tensor] | None:
    """The gradients of the window are summed, and its loss totals and weights. None where a process ran out of memory
    and all are to repeat it."""
    failed = False
    try:
        _passes(t, window)
    except (RuntimeError, MemoryError) as error:
        if t.retry is None or not out_of_memory(error):
            raise
        failed = True
    if failed:  # only now: the error is gone, and with it all tensors that its frames held
        t.sync.abandon()
    sums = t.sync.finish()
    return None if t.retry is not None and t.retry.needed(failed) else sums


def _start_over(t: Training, window: Window) -> None:
    """Forget a window that a process had no memory for; what follows is cut smaller."""
    assert t.retry is not None
    t.losses.forget(window)
    for parameter in t.parameters:
        parameter.grad = None
    t.sync.reset()
    t.batches.close()
    t.batches = t.retry.smaller(window)


def _passes(t: Training, window: Window) -> None:
    for micro in window.passes(t.rank, t.every_pass):
        before = t.sync.reductions
        batch = next(t.batches) if micro.ids else None
        t.streams.micro_batch(window.update, micro.index)
        with uncompiled(t.compiled and len(micro.ids) < window.per_device):
            total, weight = t.sync.forward(batch, micro.last)
        t.sync.backward(t.scaler.scale(total), micro.last)
        t.losses.add(window, micro, total, weight, synced=t.sync.reductions > before)


def _step(t: Training, window: Window, sums: tuple[Tensor, Tensor], sent: tuple[int, int]) -> None:
    lr = t.schedule.lr
    gradients = [gradient(p) for p in t.parameters]
    t.scaler.unscale()
    norm = average_and_clip(gradients, sums[1] / t.sync.averaged_over, t.clip, t.sync.norm)
    del gradients  # an optimizer of narrower weights frees them one by one
    skipped = not apply(t, window, sums, norm)
    for parameter in t.parameters:  # of all, also of those that the optimizer does not hold
        parameter.grad = None
    t.losses.close(
        window,
        sums,
        norm,
        lr=lr,
        skipped=skipped,
        scale=t.scaler.value,
        collectives=t.sent()[0] - sent[0],
        bytes=t.sent()[1] - sent[1],
    )


def apply(t: Training, window: Window, sums: tuple[Tensor, Tensor], norm: Tensor) -> bool:
    """Make the update and advance the schedule, or leave the window out. Returns False where it is left out.

    A loss that is no number is no matter of the scale: unless such windows are to be left out, no weight is changed
    and the row is no skipped one, so the run stops when it is read.
    """
    skips, overflow = t.nonfinite is NonFinite.skip, t.scaler.overflow
    if skips or overflow is not None:  # else nothing has to be known now
        *values, over = t.losses.look((*sums, norm, torch.zeros(()) if overflow is None else overflow))
        t.scaler.update()
        if over or (skips and not all(map(isfinite, values))):
            return not (skips or isfinite(values[0]))
    with t.streams.update(window.update):
        t.optimizer.step()
    t.schedule.advance()
    return True


@torch.no_grad()
def average_and_clip(
    gradients: list[Tensor], weight: Tensor, clip: float | None, norm_of: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """Divide the gradients by the window's weight and clip them to a global norm, in one pass over them.

    Returns the norm before clipping, as a tensor on the device. A window without any weight changes no gradient but
    to zero.
    """
    scale = torch.where(weight > 0, 1 / weight, 0.0)
    norm = norm_of(gradients) * scale
    if clip is not None:
        scale = scale * (clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([local(g) for g in gradients], scale)
    return norm


def gradient(parameter: torch.nn.Parameter) -> Tensor:
    """A parameter's gradient, zeros if nothing in the window used it. Raises TaskError where there can be none."""
    shape = tuple(parameter.shape)
    if not parameter.requires_grad:
        raise TaskError(
            f"a parameter of shape {shape} stopped to require a gradient during training. Freeze parameters in model(), "
            "or leave them requiring a gradient and give them a learning rate of 0"
        )
    found = summed(parameter)
    if found is None:
        found = parameter.grad = torch.zeros_like(parameter)
    elif found.is_sparse:
        raise TaskError(
            f"a parameter of shape {shape} has a sparse gradient, which cannot be averaged: use sparse=False"
        )
    return found
