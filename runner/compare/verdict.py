"""The rule: from the distances of two runs to a verdict. Its reasoning is in docs/compare.md.

Rounding starts at a few units in the last place and grows smoothly; a fault starts at once, at its own size. So a loss
may be `JUMP` times as far apart as it was so far (or as rounding can be at the start), and what it was so far may
itself only have doubled from one update to the next. A gradient may jump by rounding (an activation at the kink of a
ReLU), but not for good, not by much, and not just in the short windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from runner.choices import SyncPolicy
from runner.compare.align import Pair
from runner.compare.columns import Array

UNITS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}
SUMS = 4.0  # units that summing in another order costs where products and sums have the same format
AVERAGED = 0.25  # and where products are rounded coarsely but summed finely, so that the errors average out
JUMP = 150.0
FIRST = 30.0  # the same for the first loss of a run, which both compute with the very same weights
FIRST_KINK = 1e-2  # and there the largest jump of a gradient norm that one activation is credited with
GROWTH = 2.0
BLIND = 0.3  # from this tolerance on single updates say nothing
FOLLOWS = 1.0  # a gradient that is off by d moves later losses by at most that times d
KINK = 0.2  # the largest jump of a gradient norm that one activation is credited with
SHORT = 1e-3  # in a short window, the largest: a fault in its weighting shows there, a kink seldom happens to
LASTS = 1e-4  # and from this size on, the largest that may stay
LASTING = 8  # updates after a jump that show whether it stays
TWIN = 10.0


class Kind(str, Enum):
    """The five verdicts."""

    identical = "identical"
    equal = "equal"
    close = "close"
    different = "different"
    incomparable = "not comparable"

    @property
    def same(self) -> bool:
        return self in (Kind.identical, Kind.equal, Kind.close)


@dataclass(slots=True)
class Judged:
    """What the rule found on the curves. Indices count from 0 into the pair's updates."""

    tolerance: Array  # of the loss, for each update
    loss: int | None  # where the loss first breaks it
    norm: int | None  # where the gradient's norm first does
    kinks: list[int]  # jumps of the gradient that were put down to rounding
    blind: int | None  # from where on single updates say nothing

    @property
    def first(self) -> int | None:
        found = [i for i in (self.loss, self.norm) if i is not None]
        return min(found, default=None)


def start_of(pair: Pair) -> tuple[float, float]:
    """How far rounding alone may set the first loss and the first gradient norm apart."""
    names = [r.plan.config.precision.name.value for r in (pair.a, pair.b)]
    unit = max(UNITS[n] for n in names)
    if all(UNITS[n] <= UNITS["fp32"] for n in names):
        return SUMS * unit, SUMS * unit
    return AVERAGED * unit, unit


def judge(pair: Pair, twin: tuple[Array, Array] | None = None, flat: float | None = None) -> Judged:
    """Apply the rule. `twin` holds the distances (loss, norm) of a twin from its run; `flat` replaces all of it."""
    if flat is not None:
        tolerance = np.full(len(pair.loss), flat)
        return Judged(tolerance, _first(pair.loss > flat), _first(pair.norm > flat), [], None)
    start_loss, start_norm = start_of(pair)
    begins = bool(len(pair.updates)) and int(pair.updates[0]) == 1
    highest = max(float(pair.loss.max(initial=0)), float(pair.norm.max(initial=0)))
    if highest <= FIRST * start_loss:  # the most common case, without the arithmetic below
        return Judged(np.full(len(pair.loss), JUMP * start_loss), None, None, [], None)
    norm, kinks, norm_before = _judge_norm(pair, start_norm, twin)
    tolerance = _tolerance(pair.loss, start_loss, norm_before, begins)
    if twin is not None:
        tolerance = np.maximum(tolerance, TWIN * _reach(twin[0], len(tolerance)))
    blind = _first(tolerance >= BLIND)
    breaks = pair.loss > tolerance
    if blind is not None:
        breaks[blind:] = ~np.isfinite(pair.loss[blind:])
        norm = norm if norm is not None and norm < blind else None
    return Judged(tolerance, _first(breaks), norm, [k for k in kinks if blind is None or k < blind], blind)


def _tolerance(loss: Array, start: float, norm_before: Array, begins: bool) -> Array:
    """For each update, from what came before it; `begins` says that the first one is the runs' own first."""
    steps = np.arange(len(loss)) * np.log2(GROWTH)
    highest = np.log2(np.maximum.accumulate(np.concatenate([[start], np.maximum(loss[:-1], start)])))
    with np.errstate(invalid="ignore"):
        limited = np.minimum.accumulate(highest - steps) + steps
        reached: Array = np.exp2(np.minimum(limited, 0))
    tolerance: Array = np.maximum(JUMP * reached, FOLLOWS * norm_before)
    if begins:
        tolerance[:1] = FIRST * start
    return tolerance


def _judge_norm(pair: Pair, start: float, twin: tuple[Array, Array] | None) -> tuple[int | None, list[int], Array]:
    """Where the gradient differs for good, its tolerated jumps, and its highest distance before each update."""
    norm = pair.norm
    before = np.maximum.accumulate(np.concatenate([[0.0], norm[:-1]]))
    floor = np.maximum(before, start)
    allowed = JUMP * floor
    if twin is not None:
        allowed = np.maximum(allowed, TWIN * _reach(twin[1], len(norm)))
    kinks: list[int] = []
    for index in np.flatnonzero(norm > allowed):
        if _is_fault(pair, int(index), start):
            return int(index), kinks, before
        kinks.append(int(index))
    return None, kinks, before


def _is_fault(pair: Pair, index: int, start: float) -> bool:
    """Whether a jump of the gradient norm is more than an activation at a kink can do."""
    jump, norm = pair.norm[index], pair.norm
    if jump > max(KINK, JUMP * start):
        return True
    if int(pair.updates[index]) == 1 and jump > max(FIRST_KINK, JUMP * start):
        return True
    if not (norm[:index].any() or pair.loss[: index + 1].any()):
        return True  # the first difference of all: the weights were the same, and so there was nothing to tip over
    if jump >= SHORT and pair.rows_a["items"][index] < pair.a.plan.arithmetic.observed:
        return True  # in a short window, of all
    after = norm[index + 1 : index + 1 + LASTING]
    if len(after) < 3:
        return False
    if jump >= LASTS and float(np.median(after)) >= jump / 3:
        return True
    a, b = (r["grad_norm"][index : index + 1 + LASTING] for r in (pair.rows_a, pair.rows_b))
    with np.errstate(all="ignore"):
        ratio = np.log(a / b)
    return bool(np.isfinite(ratio).all() and abs(ratio.mean()) > 5 * ratio.std() and abs(ratio.mean()) > jump / 2)


def _reach(distances: Array, count: int) -> Array:
    """How far a twin had come by each update; beyond its end, as far as it ever came."""
    highest = np.maximum.accumulate(distances)
    if len(highest) >= count:
        return highest[:count]
    return np.concatenate([highest, np.full(count - len(highest), highest[-1] if len(highest) else 0.0)])


def _first(where: Array) -> int | None:
    return int(where.argmax()) if where.any() else None


def _same_norms(pair: Pair) -> bool:
    """Whether `grad_norm` is the norm of the window's gradient in both runs, and not that of the processes' own."""
    policies = [r.plan.config.sync.policy for r in (pair.a, pair.b)]
    return policies[0] is policies[1] or SyncPolicy.local_sgd not in policies


def coarse_factor(pair: Pair, start: int, block: int = 50) -> float:
    """The largest factor between the two runs' means of loss or gradient norm over a block of updates from `start` on."""
    worst = 1.0
    for name in ("loss", "grad_norm") if _same_norms(pair) else ("loss",):
        a, b = pair.rows_a[name][start:], pair.rows_b[name][start:]
        blocks = max(1, len(a) // block)
        if len(a) < 10:
            return worst
        for part_a, part_b in zip(np.array_split(a, blocks), np.array_split(b, blocks), strict=True):
            with np.errstate(all="ignore"):
                means = float(np.nanmean(np.abs(part_a))), float(np.nanmean(np.abs(part_b)))
            if all(np.isfinite(means)) and min(means) > 0:
                worst = max(worst, max(means) / min(means))
    return worst
