"""Two runs on the same updates: how far their curves are apart, and what of their rows must be equal exactly.

A distance is relative: |a - b| / max(|a|, |b|, small), where `small` is a hundredth of the curve's first values, so that
a loss that goes to zero is not held to more digits than it was computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from runner.compare.columns import Array, Columns
from runner.compare.read import Run

SMALL = 0.01
EXACT = ("digest", "items", "skipped")
SAME_WEIGHT = 1e-6  # token weights are summed in fp32 on the devices
SAME_LR = 1e-9


@dataclass(slots=True)
class Pair:
    """Two runs, aligned. Arrays have one value for each of the `updates` that both have."""

    a: Run
    b: Run
    updates: Array
    rows_a: Columns
    rows_b: Columns
    loss: Array  # distances
    norm: Array
    missing: int | None  # the first update that only one of them has

    @property
    def same_micro(self) -> bool:
        """Whether micro-batch i of a window holds the same items in both."""
        a, b = self.a.plan, self.b.plan
        return a.arithmetic.per_device == b.arithmetic.per_device and a.halved == b.halved


def align(a: Run, b: Run) -> Pair:
    """The rows of two runs, update by update."""
    rows_a, rows_b, missing = a.updates, b.updates, None
    ua, ub = rows_a["update"], rows_b["update"]
    if a.signature != b.signature and not np.array_equal(ua, ub):
        common, ia, ib = np.intersect1d(ua, ub, assume_unique=True, return_indices=True)
        alone = np.setxor1d(ua, ub, assume_unique=True)
        missing = int(alone[0]) if len(alone) else None
        rows_a, rows_b = ({k: v[i] for k, v in r.items()} for r, i in ((rows_a, ia), (rows_b, ib)))
        ua = common
    return Pair(
        a, b, ua, rows_a, rows_b, distance(rows_a["loss"], rows_b["loss"], small(a, "loss")),
        distance(rows_a["grad_norm"], rows_b["grad_norm"], small(a, "grad_norm")), missing,
    )  # fmt: skip


def distance(a: Array, b: Array, small: float) -> Array:
    """Relative distances, of values below `small` relative to that. Two NaN, or two equal infinities, are no distance; one alone is an infinite one."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
        scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), small)
        result: Array = np.divide(gap, scale, out=np.zeros_like(gap), where=gap != 0)
    if not np.isfinite(gap).all():
        bad = ~np.isfinite(gap)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        result[bad] = np.where(same[bad], 0.0, np.inf)
    return result


@cache
def small(run: Run, column: str) -> float:
    """A hundredth of a column's first values."""
    first = np.abs(run.updates[column][:10])
    first = first[np.isfinite(first)]
    return float(SMALL * first.mean()) if len(first) and first.any() else np.finfo(float).tiny


def exact_differences(pair: Pair) -> dict[str, int]:
    """The first update where a column that must be equal is not, for every such column."""
    found: dict[str, int] = {}
    if pair.a.signature == pair.b.signature:
        return found
    for name in EXACT:
        _note(found, name, pair, pair.rows_a[name] != pair.rows_b[name])
    for name, limit in (("weight", SAME_WEIGHT), ("lr", SAME_LR)):
        a, b = pair.rows_a[name], pair.rows_b[name]
        _note(found, name, pair, np.abs(a - b) > limit * np.maximum(np.abs(a), np.abs(b)))
    for name in ("loss", "grad_norm"):
        a, b = pair.rows_a[name], pair.rows_b[name]
        _note(found, f"non-finite {name}", pair, np.isfinite(a) != np.isfinite(b))
    return found


def _note(found: dict[str, int], name: str, pair: Pair, differs: Array) -> None:
    if differs.any():
        found[name] = int(pair.updates[int(differs.argmax())])


def identical(pair: Pair) -> bool:
    """Whether every number that the two runs computed is the same to the last bit."""
    if pair.missing is not None or pair.loss.any() or pair.norm.any():
        return False
    names = ("loss", "grad_norm", "weight", "lr", *EXACT)
    if not all(np.array_equal(pair.rows_a[n], pair.rows_b[n], equal_nan=True) for n in names):
        return False
    if pair.a.evals != pair.b.evals:
        return False
    weights = pair.a.weights, pair.b.weights
    if None not in weights and weights[0] != weights[1]:
        return False
    if not pair.same_micro:
        return True
    return _same_batches(pair)


def _same_batches(pair: Pair) -> bool:
    a, b = pair.a.batches, pair.b.batches
    return all(np.array_equal(a[n], b[n], equal_nan=True) for n in ("update", "micro", "loss", "weight"))


@dataclass(frozen=True, slots=True)
class Micros:
    """The micro-batches that both runs have, where they hold the same items. `distance` is relative to the larger of
    their loss and the window's; `at` is the index of the window in the pair."""

    at: Array
    micro: Array
    rank_a: Array
    rank_b: Array
    distance: Array


def align_micros(pair: Pair) -> Micros:
    """The micro-batches of the updates that both runs have."""
    a, b = pair.a.batches, pair.b.batches
    at, scale = pair.a.places[1], None
    if pair.a.places[0] != pair.b.places[0] or pair.a.count != len(pair.updates):
        key_a, key_b = (s["update"] * 2.0**20 + s["micro"] for s in (a, b))
        _, ia, ib = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
        a, b = ({k: v[i] for k, v in s.items()} for s, i in ((a, ia), (b, ib)))
        at = np.minimum(np.searchsorted(pair.updates, a["update"]), len(pair.updates) - 1)
    else:
        scale = micro_scale(pair.a)
    with np.errstate(invalid="ignore"):
        if scale is None:
            scale = np.maximum(np.maximum(np.abs(a["loss"]), np.abs(pair.rows_a["loss"][at])), small(pair.a, "loss"))
        distances = np.abs(a["loss"] - b["loss"]) / scale
    if not np.isfinite(distances).all():
        odd = ~np.isfinite(distances)
        same = (a["loss"] == b["loss"]) | (np.isnan(a["loss"]) & np.isnan(b["loss"]))
        distances[odd] = np.where(same[odd], 0.0, np.inf)
    return Micros(at, a["micro"], a["rank"], b["rank"], distances)


@cache
def micro_scale(run: Run) -> Array:
    """What the distances of a run's micro-batches are relative to: their loss or their window's, the larger one."""
    window = np.abs(run.updates["loss"][run.places[1]])
    scale: Array = np.maximum(np.maximum(np.abs(run.batches["loss"]), window), small(run, "loss"))
    return scale


@cache
def unsound_log(run: Run) -> tuple[int, str] | None:
    """The first update whose row does not follow from the rows of its micro-batches, and how; None where all do.

    The loss of an update is the mean of its micro-batches' losses by weight, and its weight their sum.
    """
    rows, batches = run.updates, run.batches
    if not len(batches["update"]):
        return None
    numbers = rows["update"]
    at = np.searchsorted(numbers, batches["update"])
    known = (at < len(numbers)) & (numbers[np.minimum(at, len(numbers) - 1)] == batches["update"])
    at, weight = at[known], batches["weight"][known]
    total = np.bincount(at, np.nan_to_num(batches["loss"][known]) * weight, len(numbers))
    weights = np.bincount(at, weight, len(numbers))
    with np.errstate(all="ignore"):
        mean = total / weights
    limit = 2.0**-8 if run.plan.config.precision.name.value == "bf16" else 1e-4
    finite = np.isfinite(rows["loss"]) & np.isfinite(mean) & (weights > 0)
    wrong_weight = (weights > 0) & (np.abs(weights - rows["weight"]) > limit * weights)
    wrong_loss = finite & (np.abs(mean - rows["loss"]) > limit * np.maximum(np.abs(mean), small(run, "loss")))
    wrong = wrong_weight | wrong_loss
    if not wrong.any():
        return None
    first = int(wrong.argmax())
    update = int(numbers[first])
    if wrong_weight[first]:
        return update, f"its weight is {rows['weight'][first]:g}, its micro-batches' together {weights[first]:g}"
    return update, _whose_loss(run, update, float(rows["loss"][first]), float(mean[first]))


def _whose_loss(run: Run, update: int, logged: float, mean: float) -> str:
    text = f"its loss is {logged:.6g}, the mean of its micro-batches {mean:.6g}"
    rows = run.batches
    here = rows["update"] == update
    loss, weight, rank = rows["loss"][here], rows["weight"][here], rows["rank"][here]
    for one in np.unique(rank):
        mine = rank == one
        if mine.all() or not weight[mine].sum():
            continue
        if abs((loss[mine] * weight[mine]).sum() / weight[mine].sum() - logged) < 1e-5 * abs(logged):
            return f"{text}: that is the loss of rank {int(one)} alone"
    if abs(loss.mean() - logged) < 1e-5 * abs(logged):
        return f"{text}: every micro-batch was given the same weight"
    return text
