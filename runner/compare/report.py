"""The comparison as one HTML file: curves, differences, times, traffic, memory, settings. It needs no network.

What is drawn is thinned out, what is judged never is. Every text from a run goes into the page as JSON and is shown as
text, so a name cannot become markup.
"""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runner.compare.align import Pair, align
from runner.compare.bars import COLORS, bars
from runner.compare.columns import Array
from runner.compare.facts import as_json, facts, setting, settings
from runner.compare.labels import labels
from runner.compare.read import Run
from runner.compare.session import Comparison
from runner.compare.verdict import judge
from runner.rundir import write_text

POINTS = 1500  # of one curve, at most
ALL_POINTS = 60_000  # of all curves together
LEAST_POINTS = 100
DASHES = ["", "7 3", "2 3", "9 3 2 3"]  # of further runs, once the colours are used up
CURVES = ("loss", "grad_norm", "lr")


def write(comparison: Comparison, path: Path) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    template = (files("runner.compare") / "page.html").read_text(encoding="utf-8")
    before, after = template.split("__BARS__")
    after = after.replace("__DATA__", embed(page_data(comparison)), 1)
    write_text(path, before + bars(comparison.runs) + after)


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(comparison: Comparison) -> dict[str, Any]:
    points = max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, 3 * len(comparison.runs))))
    keys = settings(comparison.runs)
    data = as_json(comparison)
    index = {id(r): i for i, r in enumerate(comparison.runs)}
    data["runs"] = [{**run, "label": label} for run, label in zip(data["runs"], labels(comparison.runs), strict=True)]
    data["pairs"] = data["pairs"][:2000]  # the page shows them in a list; --json has all
    return {
        **data,
        "colors": COLORS,
        "dashes": DASHES,
        "settings": keys,
        "groups": [[index[id(r)] for r in group] for group in comparison.groups],
        "curves": [
            {"settings": {k: setting(r, k) for k in keys}, "facts": facts(r), **curves(r, points)}
            for r in comparison.runs
        ],
        "differences": [
            {"a": index[id(group[0])], "b": index[id(other)], **difference(align(group[0], other), points)}
            for group in comparison.groups
            for other in group[1:]
        ],
    }


def curves(run: Run, points: int) -> dict[str, Any]:
    """The thinned curves of a run: per update, and per micro-batch."""
    rows, batches = run.updates, run.batches
    keep = thin(rows["loss"], points)
    per_update = {name: numbers(rows[name][keep]) for name in ("update", *CURVES)}
    per_update["items"] = numbers(np.cumsum(rows["items"])[keep])
    per_update["tokens"] = numbers(np.cumsum(rows["weight"])[keep])
    keep = thin(batches["loss"], points)
    weight = np.cumsum(np.nan_to_num(batches["weight"]))
    at = run.places[1][keep] if run.count else keep
    micro_batches = np.bincount(run.places[1], minlength=run.count)[at] if len(keep) else keep
    per_batch = {
        "update": numbers(batches["update"][keep] - 1 + (batches["micro"][keep] + 1) / np.maximum(1, micro_batches)),
        "tokens": numbers(weight[keep]),
        "items": numbers(np.cumsum(rows["items"])[at] if run.count else keep),
        "loss": numbers(batches["loss"][keep]),
        "seconds": numbers(batches["seconds"][keep]),
    }
    return {"per_update": per_update, "per_batch": per_batch, "drawn": len(per_update["update"]), "recorded": run.count}


def difference(pair: Pair, points: int) -> dict[str, Any]:
    """The distance of two curves and what rounding allows, thinned."""
    keep = thin(pair.loss, points)
    judged = judge(pair)
    return {
        "update": numbers(pair.updates[keep]),
        "items": numbers(np.cumsum(pair.rows_a["items"])[keep]),
        "tokens": numbers(np.cumsum(pair.rows_a["weight"])[keep]),
        "loss": numbers(pair.loss[keep]),
        "grad_norm": numbers(pair.norm[keep]),
        "tolerance": numbers(judged.tolerance[keep]),
    }


def thin(values: Array, points: int) -> Array:
    """Which of `values` to draw: first and last, and of every stretch the lowest and the highest, so that no peak is lost."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    stretches = max(1, points // 2 - 1)
    edges = np.linspace(0, count, stretches + 1).astype(int)
    low, high = np.nan_to_num(values, nan=np.inf, posinf=np.inf), np.nan_to_num(values, nan=-np.inf, neginf=-np.inf)
    kept = [0, count - 1]
    for start, stop in pairwise(edges.tolist()):
        if stop > start:
            kept += [start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())]
    return np.unique(kept)


def numbers(values: Array) -> list[float | int | None]:
    """For JSON: six digits, whole numbers as such, null for what is no number."""
    plain = np.asarray(values, dtype=float).tolist()
    return [None if v != v or abs(v) == float("inf") else int(v) if v == int(v) else float(f"{v:.6g}") for v in plain]
