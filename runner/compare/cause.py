"""The first thing in the log that explains why two runs part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from runner.choices import CompressName, SyncPolicy
from runner.compare.align import Pair, align_micros, unsound_log
from runner.compare.columns import Array
from runner.compare.read import Run
from runner.compare.verdict import JUMP, Judged, start_of
from runner.counts import counted
from runner.plan import Plan, experiment_of, flat


def by_design(pair: Pair) -> list[str]:
    """What makes the two curves differ although nothing is wrong: random draws that the setups cannot share, and policies
    that change the mathematics."""
    a, b = pair.a.plan, pair.b.plan
    found = _by_policy(a, b)
    if a.arithmetic.per_device != b.arithmetic.per_device and (a.draws, b.draws) != (False, False):
        found.append(
            f"random draws inside the model (dropout) are made for each micro-batch, and per_device is "
            f"{a.arithmetic.per_device} against {b.arithmetic.per_device}"
        )
    if a.halved != b.halved and (a.draws, b.draws) != (False, False):
        for run in (pair.a, pair.b):
            for update, size in run.plan.halved:
                found.append(f"{run.name} ran out of memory at update {update} and went on with per_device={size}")
    modes = [p.config.seeding.mode.value for p in (a, b)]
    if "fast" in modes:
        parts = [(p.arithmetic.processes, p.arithmetic.accum, p.config.data.workers) for p in (a, b)]
        if modes[0] != modes[1] or parts[0] != parts[1]:
            found.append("seeding=fast draws from one stream for each process, and the processes or their work differ")
    return found


def _by_policy(a: Plan, b: Plan) -> list[str]:
    """Compressed gradients and local updates, where the two runs do not have the same of them."""
    if changes_of(a) == changes_of(b) and _shares(a) == _shares(b):
        return []
    return list(dict.fromkeys([*changes_of(a), *changes_of(b)]))


def changes_of(plan: Plan) -> list[str]:
    """What a plan's policies change in the mathematics, each by its name."""
    compress, sync = plan.config.compress, plan.config.sync
    if plan.arithmetic.processes == 1:
        return []  # nothing is sent
    found = []
    if compress.name is CompressName.powersgd:
        found.append(f"compress=powersgd (rank {compress.rank}{_from(compress.start)}) changes the gradients")
    elif compress.name is not CompressName.none:
        found.append(f"compress={compress.name.value} changes the gradients")
    if sync.policy is SyncPolicy.local_sgd:
        found.append(f"sync=local_sgd (every {sync.every}{_from(sync.start)}) changes the updates")
    return found


def _from(start: int | None) -> str:
    return f", from update {start + 1} on" if start else ""


def _shares(plan: Plan) -> tuple[int, ...]:
    """How a window is divided, where what each process has of it is rounded or applied by itself."""
    return (plan.arithmetic.processes, plan.arithmetic.per_device) if changes_of(plan) else ()


def keeps_statistics(pair: Pair) -> str | None:
    """The note of a plan whose model keeps running statistics (BatchNorm)."""
    notes = [n for r in (pair.a, pair.b) for n in r.plan.notes if "running statistics" in n]
    return notes[0] if notes else None


def explain_exact(pair: Pair, name: str, update: int) -> str:
    """A column that must be equal and is not."""
    at = int(np.searchsorted(pair.updates, update))
    a, b = pair.rows_a, pair.rows_b
    if name == "items":
        text = f"another number of items: {int(a['items'][at])} against {int(b['items'][at])}"
        return text + ("" if a["digest"][at] == b["digest"][at] else _repeated(pair, at))
    if name == "digest":
        return f"other items in the window{_repeated(pair, at)}"
    if name == "lr":
        return f"another learning rate: {a['lr'][at]:.6g} against {b['lr'][at]:.6g}{_stepped(a['lr'], b['lr'], at)}"
    if name == "weight":
        return f"other weights, though the items are the same: {a['weight'][at]:.10g} against {b['weight'][at]:.10g}"
    if name == "skipped":
        side = pair.a if a["skipped"][at] else pair.b
        return f"a skipped update, in {side.name} alone"
    column = name.removeprefix("non-finite ")
    side = pair.b if np.isfinite(a[column][at]) else pair.a
    return f"a non-finite value: the {_words(column)} of {side.name}"


def _repeated(pair: Pair, at: int) -> str:
    """Whether a window has been trained on before."""
    for run, rows in ((pair.a, pair.rows_a), (pair.b, pair.rows_b)):
        earlier = np.flatnonzero(rows["digest"][:at] == rows["digest"][at])
        if len(earlier):
            return f"; {run.name} repeats those of update {int(pair.updates[earlier[-1]])}"
    moved = [
        int(pair.updates[i]) for i in np.flatnonzero(pair.rows_a["digest"] == pair.rows_b["digest"][at]) if i != at
    ]
    return f"; {pair.b.name} has those of update {moved[0]} of {pair.a.name}" if moved else ""


def _stepped(a: Array, b: Array, at: int) -> str:
    """Whether one schedule runs a whole number of times as fast as the other."""
    count = len(a)
    for factor in (2, 3, 4, 6, 8, 16):
        here = np.arange(min(count, -(-count // factor)))
        here = here[here * factor < count]
        here = here[here <= max(at, 3)]
        if len(here) < 2 or at > here[-1]:
            continue
        for x, y, who in ((a, b, "the second"), (b, a, "the first")):
            if np.allclose(x[here * factor], y[here], rtol=1e-6, atol=0):
                return f"; the schedule of {who} advances {factor} times as fast"
    return ""


def explain_curve(pair: Pair, judged: Judged) -> str:
    """A loss or a gradient that left the tolerance, in the update of `judged.first`."""
    at = judged.first
    assert at is not None
    update = int(pair.updates[at])
    found = [*_from_log(pair, update), *_from_norm(pair, judged, at), *_from_micros(pair, judged, at)]
    found += [*_from_place(pair, at), *_from_plans(pair)]
    if judged.loss == at:
        what = _values(pair, "loss", at) + f", where rounding allows {judged.tolerance[at]:.1e} (relative)"
    else:
        what = _values(pair, "grad_norm", at) + (
            ", while the loss agrees" if pair.loss[at] < judged.tolerance[at] else ""
        )
    return "; ".join([what, *found]) if found else f"{what}; nothing else in the log differs before"


def _values(pair: Pair, column: str, at: int) -> str:
    return f"the {_words(column)} is {pair.rows_a[column][at]:.7g} against {pair.rows_b[column][at]:.7g}"


def _from_log(pair: Pair, update: int) -> Iterator[str]:
    for run in (pair.a, pair.b):
        unsound = unsound_log(run)
        if unsound is not None and unsound[0] <= update:
            yield f"the log of {run.name} is unsound from update {unsound[0]} on ({unsound[1]})"


def _from_norm(pair: Pair, judged: Judged, at: int) -> Iterator[str]:
    a, b = pair.rows_a["grad_norm"], pair.rows_b["grad_norm"]
    if judged.norm is None or judged.norm > at + 1:
        if judged.norm is None and judged.loss is not None and len(a) - at > 3:
            start = JUMP * start_of(pair)[1]
            if float(pair.norm[: at + 4].max()) <= start and float(pair.loss[at]) > start:
                yield "the gradients agree all the same: what is logged differs, not what is trained"
        return
    with np.errstate(all="ignore"):
        ratios = (b / a)[judged.norm :][:LOOK]
    if not np.isfinite(ratios).all() or not len(ratios):
        return
    for whole in (2, 3, 4, 8, 16):
        for value, side in ((ratios[0], pair.b), (1 / ratios[0], pair.a)):
            if abs(value / whole - 1) < 1e-3:
                yield f"the gradient of {side.name} is {whole} times the other: summed where it should be averaged?"
                return
    if abs(ratios[0] - 1) < 1e-4 and judged.loss == at:
        return
    items = int(pair.rows_a["items"][judged.norm])
    observed = pair.a.plan.arithmetic.observed
    short = f", in a short window of {counted(items, 'item')} instead of {observed}" if items < observed else ""
    yield f"the gradient norms differ by {abs(ratios[0] - 1):.1%}{short}"


LOOK = 8


def _from_micros(pair: Pair, judged: Judged, at: int) -> Iterator[str]:
    """Which of the micro-batches differ, where both runs have the same ones."""
    if not pair.same_micro or judged.loss != at:
        return
    micros = align_micros(pair)
    here = micros.at == at
    limit = max(float(judged.tolerance[at]), JUMP * start_of(pair)[0])
    off = micros.distance[here] > limit
    rank, micro = micros.rank_b[here], micros.micro[here]
    if not len(off):
        return
    if not off.any():
        yield "every micro-batch's own loss agrees: they are put together differently"
    elif off.all():
        yield f"all {len(off)} micro-batches differ" if len(off) > 1 else "its one micro-batch differs"
    else:
        ranks = sorted({int(r) for r in rank[off]})
        others = {int(r) for r in rank[~off]}
        places = ", ".join(str(int(m)) for m in micro[off][:8])
        whole = "" if set(ranks) & others else f" (all those of rank {', '.join(map(str, ranks))} of {pair.b.name})"
        yield f"of {len(off)} micro-batches only {places} differ{whole}: the draws depend on the process?"


def _from_place(pair: Pair, at: int) -> Iterator[str]:
    update = int(pair.updates[at])
    for run in (pair.a, pair.b):
        if update in run.resumed:
            yield f"{run.name} was resumed before this update"
    done = {row["update"] for run in (pair.a, pair.b) for row in run.evals}
    if update - 1 in done and update > 1:
        yield f"it is the first update after the evaluation at update {update - 1}: does that draw from training's streams?"


def _from_plans(pair: Pair) -> Iterator[str]:
    names = [r.plan.config.precision.name.value for r in (pair.a, pair.b)]
    if names[0] != names[1]:
        yield f"another precision: {names[0]} against {names[1]}"
    note = keeps_statistics(pair)
    if note and pair.a.plan.arithmetic.per_device != pair.b.plan.arithmetic.per_device:
        yield f"batch normalization uses each micro-batch's own statistics, and per_device differs ({note})"


def explain_missing(pair: Pair) -> str:
    """Rows that only one run has."""
    longer, shorter = (pair.a, pair.b) if pair.a.count >= pair.b.count else (pair.b, pair.a)
    reason = shorter.status.get("reason")
    state = f"{shorter.state}: {reason}" if reason else shorter.state
    if shorter.state == "finished":
        state = "it says finished: a truncated log, or an early stop"
    return f"{shorter.name} has no row of it ({state}); {longer.name} has {counted(longer.count, 'update')}, {shorter.name} {shorter.count}"


def experiment_differences(a: Run, b: Run) -> list[str]:
    """What differs in what is trained: `key value against value`."""
    keys = dict.fromkeys([*a.experiment, *b.experiment])
    return [
        f"{_KEYS.get(k, k)} {a.experiment.get(k)} against {b.experiment.get(k)}"
        for k in keys
        if a.experiment.get(k) != b.experiment.get(k)
    ]


def plan_differences(asked: Plan, found: Plan, free: Sequence[str] = ()) -> list[str]:
    """What differs in what two plans train, whatever their data: `key value instead of value`. Keys in `free`, and those below
    them, may differ."""
    a, b = (flat(experiment_of(p.config, p.arithmetic)) for p in (asked, found))
    return [
        f"{_KEYS.get(k, k)} {b.get(k)} instead of {a.get(k)}"
        for k in dict.fromkeys([*a, *b])
        if a.get(k) != b.get(k) and not any(k == f or k.startswith(f + ".") for f in free)
    ]


def setup_differences(a: Run, b: Run) -> list[str]:
    keys = dict.fromkeys([*a.setup, *b.setup])
    return [f"{k} {a.setup.get(k)} against {b.setup.get(k)}" for k in keys if a.setup.get(k) != b.setup.get(k)]


_KEYS = {"observed": "observed batch", "data": "data fingerprint", "items": "training items"}


def _words(column: str) -> str:
    return "gradient norm" if column == "grad_norm" else column
