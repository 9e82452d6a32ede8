"""Which items go into which window, micro-batch and process: pure arithmetic.

A window holds the items between two optimizer updates. It is cut into micro-batches of `per_device` items,
in order; each process takes one contiguous block of `accum` micro-batches. So micro-batch i of a window
holds the same items whatever the number of processes, as long as `per_device` is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from runner.choices import Remainder
from runner.keys import derive

Ids = NDArray[np.int64]


def epoch_order(items: int, epoch: int, seed: int, shuffle: bool) -> Ids:
    """The ids of `items` items in the order of `epoch` (counted from 1), shape (items,).

    RandomState, unlike numpy's newer generators, keeps its stream for ever (NEP 19).
    """
    if not shuffle:
        return np.arange(items, dtype=np.int64)
    key = derive(seed, "order", epoch)
    state = np.random.RandomState([key & 0xFFFFFFFF, key >> 32])
    return state.permutation(items).astype(np.int64, copy=False)


def windows_per_epoch(items: int, observed: int, remainder: Remainder) -> int:
    """Updates in an epoch: a short last window counts, unless it is dropped."""
    if remainder is Remainder.drop:
        return items // observed
    return -(-items // observed)


def divisors(number: int) -> list[int]:
    """All numbers that divide `number`, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one process puts through one forward and backward.

    `index` is its place in the whole window, over all processes. `ids` is empty where a process has
    no items left and only takes part in a reduction, with weight zero; `last` marks a process's last
    pass of the window.
    """

    index: int
    ids: tuple[int, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class Window:
    """The items of one update (counted from 1), and who computes which of them."""

    update: int
    epoch: int
    ids: Ids
    per_device: int
    accum: int
    first_of_epoch: bool
    last_of_epoch: bool

    @property
    def digest(self) -> str:
        """A short digest of the item ids, in order: equal for equal windows."""
        return blake2b(self.ids.tobytes(), digest_size=8).hexdigest()

    @property
    def micro_batches(self) -> int:
        """Micro-batches with items, over all processes."""
        return -(-len(self.ids) // self.per_device)

    def passes(self, rank: int, every: bool) -> list[MicroBatch]:
        """The passes of process `rank`: its micro-batches, and where a reduction needs it, empty ones.

        Every process must take part in every reduction. There is one per window, or, where `every`
        micro-batch is reduced, as many as the fullest process (the first) has micro-batches.
        """
        first = rank * self.accum
        own = max(0, min(self.accum, self.micro_batches - first))
        needed = max(own, min(self.accum, self.micro_batches) if every else 1)
        return [MicroBatch(first + i, self._ids(first + i) if i < own else (), i == needed - 1) for i in range(needed)]

    def _ids(self, index: int) -> tuple[int, ...]:
        return tuple(self.ids[index * self.per_device : (index + 1) * self.per_device].tolist())


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a run, in order: epochs one after another, until `updates` windows are done."""

    items: int
    per_device: int
    accum: int
    observed: int
    updates: int
    remainder: Remainder
    shuffle: bool
    seed: int

    def __iter__(self) -> Iterator[Window]:
        per_epoch = windows_per_epoch(self.items, self.observed, self.remainder)
        if not per_epoch:
            return
        update = 0
        for epoch in count(1):
            order = epoch_order(self.items, epoch, self.seed, self.shuffle)
            if self.remainder is Remainder.pad:
                order = np.resize(order, per_epoch * self.observed)  # repeats from the epoch's start
            for index in range(per_epoch):
                if update == self.updates:
                    return
                update += 1
                ids = order[index * self.observed : (index + 1) * self.observed]
                yield Window(update, epoch, ids, self.per_device, self.accum, index == 0, index == per_epoch - 1)


class Requests:
    """(epoch, item ids) of every pass of a process that has items, from the window `first` on; made anew each time
    they are asked for. `per_device` and `accum`, where given, cut the same windows otherwise."""

    def __init__(
        self, windows: Windows, rank: int, every_pass: bool, first: int = 1, per_device: int | None = None,
        accum: int | None = None,
    ):  # fmt: skip
        self._windows, self._rank, self._every_pass, self._first = windows, rank, every_pass, first
        self._per_device, self._accum = per_device or windows.per_device, accum or windows.accum

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        for window in islice(self._windows, self._first - 1, None):
            cut = replace(window, per_device=self._per_device, accum=self._accum)
            for micro in cut.passes(self._rank, self._every_pass):
                if micro.ids:
                    yield window.epoch, micro.ids
