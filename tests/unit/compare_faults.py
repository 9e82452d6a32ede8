"""Trainers with one fault each, as people have had them in such loops. Each breaks one step of `Simulated`."""

from __future__ import annotations

import numpy as np
import torch

from runner.loop import average_and_clip
from runner.sync.local import norm_of
from runner.window import Window
from tests.unit.compare_simulation import Simulated


class EachAveragedAlone(Simulated):
    """The mean of the micro-batches' means."""

    def backward(self, total, weight, window, rank):
        (total / weight / window.micro_batches).backward()

    def average(self, weight, window):
        return average_and_clip(self.gradients(), torch.tensor(1.0), None, norm_of)


class ShortWindowMisscaled(Simulated):
    """Every window divided by the observed batch, also the short ones."""

    def average(self, weight, window):
        return average_and_clip(self.gradients(), torch.tensor(float(self.plan.arithmetic.observed)), None, norm_of)


class LastWindowDropped(Simulated):
    """An epoch's short window left out."""

    def windows(self):
        full = [w for w in self.plan.windows() if len(w.ids) == self.plan.arithmetic.observed]
        for number, window in enumerate(full, 1):
            yield Window(number, window.epoch, window.ids, window.per_device, window.accum, False, False)


class TailRepeated(Simulated):
    """An epoch's short window filled up with items that were there already."""

    def windows(self):
        for window in self.plan.windows():
            ids = np.resize(window.ids, self.plan.arithmetic.observed)
            yield Window(window.update, window.epoch, ids, window.per_device, window.accum, False, False)


class RankZeroLogged(Simulated):
    """The loss of rank 0 written down as the window's."""

    def log(self, row, rows):
        mine = [r for r in rows if r.rank == 0]
        row.loss = sum(r.loss * r.weight for r in mine) / sum(r.weight for r in mine)


class ScheduleSteppedPerProcess(Simulated):
    def step(self, window):
        self.optimizer.step()
        for _ in range(self.ranks):
            self.schedule.advance()


class OrderPerProcess(Simulated):
    """Every process shuffles with a seed of its own."""

    def windows(self):
        for window in self.plan.windows():
            share = len(window.ids) // self.ranks
            ids = window.ids.copy()
            state = np.random.RandomState(window.update)
            ids[share:] = state.randint(0, self.plan.arithmetic.items, len(ids) - share)
            yield Window(window.update, window.epoch, ids, window.per_device, window.accum, False, False)


class RankLeftOut(Simulated):
    """From update 40 on the last rank's gradient does not arrive."""

    def backward(self, total, weight, window, rank):
        if window.update < 40 or rank < self.ranks - 1:
            total.backward()


class Summed(Simulated):
    """The processes' averages added up."""

    def average(self, weight, window):
        return average_and_clip(self.gradients(), weight / self.ranks, None, norm_of)


class ItemsForTokens(Simulated):
    """Every micro-batch counts by its items, not by its tokens."""

    def backward(self, total, weight, window, rank):
        (total / weight * self.plan.arithmetic.per_device).backward()

    def average(self, weight, window):
        return average_and_clip(self.gradients(), torch.tensor(float(len(window.ids))), None, norm_of)


class PaddingCounted(Simulated):
    """Padded places are counted as tokens in the weight."""

    def micro_batch(self, window, rank, micro):
        total, weight, row = super().micro_batch(window, rank, micro)
        weight = float(self.items[window.epoch, micro.ids][:, 1:].numel())
        row.weight, row.loss = weight, float(total) / weight
        return total, weight, row


class MasksByRank(Simulated):
    """Dropout drawn from the rank's own stream."""

    def start_stream(self, window, rank, index):
        self.streams.micro_batch(window.update, index + 1000 * rank)


class EvaluationDraws(Simulated):
    """An evaluation that advances training's streams."""

    def evaluate(self, window):
        super().evaluate(window)
        torch.rand(100)


class StateLost(Simulated):
    """The optimizer's momentum is gone after update 24, as after a bad resume."""

    def step(self, window):
        if window.update == 24:
            self.optimizer.state.clear()
        super().step(window)


class SecretlyHalf(Simulated):
    """Autocast to bf16, though the plan says fp32."""

    def micro_batch(self, window, rank, micro):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().micro_batch(window, rank, micro)


class ItemLost(Simulated):
    """In the second epoch every micro-batch loses its last item on the way."""

    def micro_batch(self, window, rank, micro):
        if window.epoch == 2 and len(micro.ids) > 1:
            micro = type(micro)(micro.index, micro.ids[:-1], micro.last)
        return super().micro_batch(window, rank, micro)


class ClippedPerRank(Simulated):
    """Gradients clipped where they should not be: at a norm of 0.6 instead of never."""

    def average(self, weight, window):
        return average_and_clip(self.gradients(), weight, 0.6, norm_of)


class NotANumber(Simulated):
    """One loss is not a number."""

    def log(self, row, rows):
        if row.update == 17:
            row.loss = float("nan")


class OneSkipped(Simulated):
    """An update that is left out, and says so."""

    def step(self, window):
        if window.update != 12:
            super().step(window)

    def log(self, row, rows):
        row.skipped = row.update == 12


class NotZeroed(Simulated):
    """From update 31 on half of the gradient before is left over."""

    def update(self, window):
        if window.update > 30:
            for p, before in zip(self.parameters, self.before, strict=True):
                p.grad = before
        super().update(window)

    def average(self, weight, window):
        norm = super().average(weight, window)
        self.before = [0.5 * p.grad for p in self.parameters]
        return norm
