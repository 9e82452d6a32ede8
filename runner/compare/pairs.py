"""The verdict on two runs of one experiment: the rule, the exact columns, micro-batches and evaluations, put together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.compare import cause
from runner.compare.align import Pair, align, align_micros, exact_differences, identical, unsound_log
from runner.compare.columns import Array
from runner.compare.outcome import SEEDS
from runner.compare.read import Run
from runner.compare.verdict import FOLLOWS, JUMP, Judged, Kind, coarse_factor, judge, start_of
from runner.counts import counted

COARSE = 1.5  # between means over blocks of updates, where single updates say nothing
LEAST = 20  # updates that must have been judged one by one
DRAWS_SHOW = 1e-3  # a tolerance below which other dropout masks cannot hide
MICRO = 4.0  # a micro-batch's loss may be this many times as far apart as a window's


@dataclass(slots=True)
class Verdict:
    """What is said of two runs. `first` is the first differing update; `through` the last one that could be judged."""

    a: Run
    b: Run
    kind: Kind
    reason: str
    first: int | None = None
    cause: str | None = None
    through: int | None = None
    notes: list[str] = field(default_factory=list)
    sensitivity: float | None = None
    unsettled: bool = False  # the curves cannot tell; several seeds might


def compare_two(a: Run, b: Run, twin: tuple[Array, Array] | None, flat: float | None) -> Verdict:
    """The verdict on two runs of one experiment."""
    pair = align(a, b)
    exact = exact_differences(pair)
    if not exact and identical(pair):
        return Verdict(
            a, b, Kind.identical, f"every bit of {counted(len(pair.updates), 'update')}", through=_last(pair)
        )
    if not len(pair.updates):
        return Verdict(
            a,
            b,
            Kind.different,
            "from update 1: they have no update in common",
            first=1,
            cause=cause.explain_missing(pair),
        )
    judged = judge(pair, twin, flat)
    verdict = _different(pair, judged, exact)
    if verdict is None:
        verdict = _same(pair, judged, twin is not None, flat)
    for run in (a, b):
        unsound = unsound_log(run)
        if unsound is not None:
            verdict.notes.append(f"the log of {run.name} is unsound from update {unsound[0]} on: {unsound[1]}")
    return verdict


def _last(pair: Pair) -> int:
    return int(pair.updates[-1])


def _different(pair: Pair, judged: Judged, exact: dict[str, int]) -> Verdict | None:
    """The earliest of what is wrong; None where nothing is."""
    where = dict(exact)
    if pair.missing is not None:
        where["missing"] = pair.missing
    if judged.first is not None:
        where["curve"] = int(pair.updates[judged.first])
    micro = _first_micro(pair, judged)
    if micro is not None:
        where["micro"] = micro
    if not where:
        return _eval_difference(pair, judged)
    order = [
        "items",
        "digest",
        "weight",
        "lr",
        "skipped",
        "non-finite loss",
        "non-finite grad_norm",
        "missing",
        "curve",
        "micro",
    ]
    update = min(where.values())
    name = next(n for n in order if where.get(n) == update)
    if name == "curve":
        text = cause.explain_curve(pair, judged)
        if drawn := cause.by_design(pair):
            return _drawn(pair, update, text, drawn, judged)
    elif name == "micro":
        text = "the losses of its micro-batches differ, though the window's agrees"
    else:
        text = cause.explain_missing(pair) if name == "missing" else cause.explain_exact(pair, name, update)
        notes = {n: u for n, u in where.items() if n not in (name, "micro") and n in exact and u == update}
        text = "; ".join([text, *(cause.explain_exact(pair, n, u) for n, u in notes.items() if n != "digest")])
    return Verdict(pair.a, pair.b, Kind.different, f"from update {update}: {text}", update, text, update - 1)


def _drawn(pair: Pair, update: int, text: str, drawn: list[str], judged: Judged) -> Verdict:
    """The curves must differ: whether something else is wrong, too, can only be told roughly."""
    reason = "; ".join(drawn)
    statistics = cause.keeps_statistics(pair)
    if statistics and not pair.same_micro:
        return Verdict(pair.a, pair.b, Kind.different, f"from update {update}: {text}", update, text, update - 1)
    factor = coarse_factor(pair, 0)
    if factor > COARSE:
        text = f"{text}; {reason}, but over a block of updates the means differ by a factor of {factor:.2g}"
        return Verdict(pair.a, pair.b, Kind.different, f"from update {update}: {text}", update, text, update - 1)
    return Verdict(
        pair.a, pair.b, Kind.incomparable,
        f"the curves differ from update {update} on by design: {reason}. Whether the outcome agrees takes {SEEDS} seeds on both sides",
        update, reason, _last(pair), unsettled=True,
    )  # fmt: skip


def _first_micro(pair: Pair, judged: Judged) -> int | None:
    """The first update whose micro-batches differ though its loss does not."""
    if not pair.same_micro or cause.by_design(pair) or not pair.loss.any():
        return None
    if not (len(pair.a.batches["update"]) and len(pair.b.batches["update"])):
        return None
    micros = align_micros(pair)
    limit = MICRO * judged.tolerance
    if judged.blind is not None:
        limit[judged.blind :] = np.inf
    if not len(micros.distance) or float(micros.distance.max()) <= float(limit.min()):
        return None
    off = micros.distance > limit[micros.at]
    return int(pair.updates[micros.at[off.argmax()]]) if off.any() else None


def _eval_difference(pair: Pair, judged: Judged) -> Verdict | None:
    """Evaluations that differ though training agrees."""
    theirs = {row["update"]: row for row in pair.b.evals}
    for row in pair.a.evals:
        other, update = theirs.get(row["update"]), row["update"]
        if other is None or (judged.blind is not None and update > pair.updates[judged.blind]):
            continue
        name = _off(pair, judged, row, other)
        if name is None:
            continue
        text = f"the evaluation's {name} is {row.get(name)} against {other.get(name)}, while training agrees"
        note = cause.keeps_statistics(pair)
        if row.get("weight") != other.get("weight"):
            text += f"; other items were evaluated: their weight is {row.get('weight')} against {other.get('weight')}"
        elif note:
            text += f"; batch normalization's running statistics ({note})"
        return Verdict(
            pair.a,
            pair.b,
            Kind.different,
            f"from the evaluation after update {update}: {text}",
            int(update),
            text,
            int(update),
        )
    return None


def _off(pair: Pair, judged: Judged, row: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first number of an evaluation that is further off than training's."""
    at = int(np.searchsorted(pair.updates, row["update"], side="right"))
    reach = max(float(pair.loss[:at].max(initial=0)), start_of(pair)[0])
    limit = max(JUMP * reach, FOLLOWS * float(pair.norm[:at].max(initial=0)), float(judged.tolerance[max(0, at - 1)]))
    for name in row.keys() - {"update", "epoch"}:
        x, y = row.get(name), other.get(name)
        if not isinstance(x, int | float) or not isinstance(y, int | float):
            if x != y:
                return name
            continue
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        flips = (
            0.0 if name in ("loss", "weight") else 2 / max(1.0, float(row.get("weight") or 1))
        )  # items that tip over
        if not abs(x - y) <= (0 if name == "weight" else limit) * max(abs(x), abs(y)) + flips:
            return name
    return None


def _same(pair: Pair, judged: Judged, twin: bool, flat: float | None) -> Verdict:
    """Nothing is wrong as far as one can see; how far is that?"""
    highest = float(pair.loss.max(initial=0))
    through = _last(pair) if judged.blind is None else int(pair.updates[judged.blind]) - 1
    how = (
        "the tolerance given" if flat is not None else "the twin's distance" if twin else "the rule of docs/compare.md"
    )
    reason = f"losses at most {highest:.1e} apart (relative) in {counted(len(pair.updates), 'update')}, within {how}"
    notes = []
    if judged.kinks:
        update = int(pair.updates[judged.kinks[0]])
        jump = float(pair.norm[judged.kinks[0]])
        notes.append(
            f"at update {update} the gradient's norm jumps by {jump:.1e} while the loss agrees: an activation at a kink does that; "
            "a fault of that one update would look the same (more twins tell)"
        )
    kind, unsettled = Kind.equal, False
    if judged.blind is not None:
        factor = coarse_factor(pair, judged.blind)
        reason = (
            f"equal through update {through}; from there on rounding alone may set single losses {judged.tolerance[judged.blind]:.0%} apart, "
            f"and only means over blocks of updates are judged (within a factor of {factor:.2f})"
        )
        if factor > COARSE or judged.blind < LEAST:
            kind, unsettled = Kind.incomparable, True
            few = (
                f"{counted(judged.blind, 'update')} {'is' if judged.blind == 1 else 'are'} too few to call the runs equal"
                if factor <= COARSE
                else "too far apart to call equal"
            )
            reason += f": {few}. {SEEDS} seeds on both sides would tell"
    drawn = cause.by_design(pair)
    if drawn and judged.tolerance[0] > DRAWS_SHOW and kind is Kind.equal:
        kind, unsettled = Kind.incomparable, True
        reason = (
            f"{'; '.join(drawn)}: at this precision rounding hides whether the model draws at all. "
            f"{SEEDS} seeds on both sides would tell"
        )
    sensitivity = float(judged.tolerance[0]) if len(judged.tolerance) else None
    return Verdict(pair.a, pair.b, kind, reason, None, None, through, notes, sensitivity, unsettled)
