"""Losses stay on the device until they are read, many at once: the one place where the host waits for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runner.backend import Backend
from runner.errors import NonFiniteError, TaskError
from runner.records import Appender, BatchRow, UpdateRow
from runner.rundir import RunFolder
from runner.window import MicroBatch, Window
from runner.world import World


@dataclass(slots=True)
class _Micro:
    window: Window
    index: int
    total: Tensor
    weight: Tensor | float
    start: Any
    end: Any
    synced: bool


@dataclass(slots=True)
class _Update:
    window: Window
    total: Tensor
    weight: Tensor
    norm: Tensor
    lr: float
    start: Any
    end: Any
    collectives: int
    bytes: int
    skipped: bool
    scale: Tensor | None
    peak_memory: int | None


class Losses:
    """Collects what a window's passes leave behind, and writes its rows after every `every` windows.

    `measures` is the number of windows whose peak memory is measured, from the first one on; None for all.
    `reads` counts how often the host has waited for values of the device.
    """

    def __init__(self, folder: RunFolder, world: World, backend: Backend, every: int, measures: int | None):
        self.reads = 0
        self._no_gradient = False  # whether the first update had a loss, and no parameter a gradient
        self._measures, self._measured = measures, False
        self._world, self._backend, self._every = world, backend, every
        self._batch_file, self._update_file = Appender(folder.batches), Appender(folder.updates)
        self._micros: list[_Micro] = []
        self._updates: list[_Update] = []
        self._last = backend.mark()
        self._opened = self._last

    @contextmanager
    def window(self, update: int, held: Callable[[], list[Tensor]]) -> Iterator[None]:
        """A window is done meanwhile: what came before it (an evaluation, say) is no part of its time. `held` are the
        tensors that are there already."""
        self._measured = self._measures is None or update <= self._measures
        with self._backend.measuring(held()) if self._measured else nullcontext():
            self._opened = self._last = self._backend.mark()
            yield

    def add(self, window: Window, micro: MicroBatch, total: Tensor, weight: Tensor | float, synced: bool) -> None:
        """A pass is done. One without items only took part in a reduction and leaves no row."""
        now = self._backend.mark()
        if micro.ids:
            self._micros.append(_Micro(window, micro.index, total.detach(), weight, self._last, now, synced))
        self._last = now

    def forget(self, window: Window) -> None:
        """The window is repeated: what was added for it leaves no rows."""
        self._micros = [m for m in self._micros if m.window.update != window.update]

    def close(self, window: Window, sums: tuple[Tensor, Tensor], norm: Tensor, **facts: Any) -> None:
        """The window's update is done; read and write if it is time. Raises NonFiniteError."""
        mark = self._backend.mark()
        memory = self._backend.peak_memory() if self._measured else None
        self._updates.append(_Update(window, *sums, norm, start=self._opened, end=mark, peak_memory=memory, **facts))
        if len(self._updates) >= self._every:
            self.flush()

    def look(self, values: Sequence[Tensor]) -> list[float]:
        """`values`, now. Waits for the device: only who must decide asks."""
        return self._read(list(values))

    def flush(self) -> None:
        """Read everything at once and append the rows. Raises NonFiniteError for an update that is not skipped."""
        bad, rows = self.save()
        if bad is not None:
            self._stop(bad, rows)

    def save(self) -> tuple[UpdateRow | None, list[BatchRow]]:
        """Read everything at once and append the rows, without talking to other processes: also after a failure.

        Returns the first update that is not finite and was not skipped, and the rows of this process's micro-batches.
        """
        micros, updates = self._micros, self._updates
        if not micros and not updates:
            return None, []
        self._micros, self._updates = [], []
        values = iter(self._read(_tensors(micros, updates)))
        batch_rows = [self._batch_row(m, values) for m in micros]
        update_rows = [self._update_row(u, values) for u in updates]
        bad = next((r for r in update_rows if _broken(r) and not r.skipped), None)
        if bad is not None:  # what came after it was computed with weights that are no numbers
            batch_rows = [r for r in batch_rows if r.update <= bad.update]
            update_rows = [r for r in update_rows if r.update <= bad.update]
        self._batch_file.append(batch_rows)
        if self._world.rank == 0:
            self._update_file.append(update_rows)
        return bad, batch_rows

    def notes(self, task: str) -> tuple[str, ...]:
        """What the rows have shown of the task of that name, once they are read."""
        what = (
            f"no parameter had a gradient in the first update: what {task}.loss returns was not computed from the model's output, "
            "or something in between (detach(), item(), a new tensor) has cut it off"
        )
        return (what,) if self._no_gradient else ()

    def _stop(self, bad: UpdateRow, rows: list[BatchRow]) -> None:
        """All processes found the same update: its loss and norm are the same on all of them."""
        here = [r for r in rows if r.update == bad.update]
        mine = [(r.rank, r.micro, f"loss {r.loss}") for r in here if not _finite(r.loss) and _finite(r.weight)]
        mine += [(r.rank, r.micro, f"weight {r.weight}") for r in here if not _finite(r.weight)]
        found = [place for places in self._world.gather(mine) for place in places]
        where = ", ".join(f"rank {rank} micro-batch {micro} ({what})" for rank, micro, what in found)
        if not where:
            where = f"every micro-batch's loss is finite, the gradient's norm is {bad.grad_norm}"
        raise NonFiniteError(
            f"update {bad.update} is not finite: {where}. nonfinite=skip leaves such updates out; "
            f"{_cure(bad.update, [what for _, _, what in found])}",
            rank=found[0][0] if found else None,
        )

    def _read(self, tensors: list[Tensor]) -> list[float]:
        self.reads += 1
        if not tensors:
            return []
        kind = tensors[0].dtype
        if any(t.dtype is not kind or t.ndim for t in tensors):
            tensors = [t.detach().reshape(()).to(torch.float64) for t in tensors]
        return torch.stack(tensors).tolist()

    def _batch_row(self, m: _Micro, values: Any) -> BatchRow:
        total = next(values)
        weight = next(values) if isinstance(m.weight, Tensor) else float(m.weight)
        if weight < 0:
            raise TaskError(
                f"update {m.window.update}, micro-batch {m.index}: the weight {weight:g} is negative. loss must return the pair (sum of the "
                "losses, weight), where the weight is the number of items or tokens that the sum is over"
            )
        seconds = self._backend.seconds(m.start, m.end)
        loss = _mean(total, weight)
        return BatchRow(m.window.update, m.index, self._world.rank, m.window.epoch, loss, weight, seconds, m.synced)

    def _update_row(self, u: _Update, values: Any) -> UpdateRow:
        total, weight, norm = next(values), next(values), next(values)
        self._no_gradient |= u.window.update == 1 and total != 0 and weight > 0 and norm == 0
        return UpdateRow(
            update=u.window.update,
            epoch=u.window.epoch,
            loss=_mean(total, weight),
            weight=weight,
            lr=u.lr,
            grad_norm=norm,
            seconds=self._backend.seconds(u.start, u.end),
            items=len(u.window.ids),
            digest=u.window.digest,
            collectives=u.collectives,
            bytes=u.bytes,
            skipped=u.skipped,
            scale=next(values) if u.scale is not None else None,
            peak_memory=u.peak_memory,
        )


def _cure(update: int, found: list[str]) -> str:
    """What may help against an update that is not finite; `found` says what its micro-batches had."""
    if any(what.startswith("weight") for what in found):
        return "the weight is what the task's loss returns"
    if update == 1:
        return "nothing was updated before it, so the data, the loss or the initial weights are at fault"
    return "a smaller optim.lr or optim.clip=1.0 may avoid them"


def _tensors(micros: list[_Micro], updates: list[_Update]) -> list[Tensor]:
    """What must be read, in the order in which rows take it."""
    found: list[Tensor] = []
    for m in micros:
        found.extend([m.total, m.weight] if isinstance(m.weight, Tensor) else [m.total])
    for u in updates:
        found.extend([u.total, u.weight, u.norm] if u.scale is None else [u.total, u.weight, u.norm, u.scale])
    return found


def _mean(total: float, weight: float) -> float | None:
    """The loss per unit of weight; None where nothing had any weight."""
    return total / weight if weight else None if total == 0 else total


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _broken(row: UpdateRow) -> bool:
    return not (_finite(row.loss) and _finite(row.grad_norm) and _finite(row.weight))
