"""References: what a recipe's run looked like where somebody kept it, small enough to lie beside the recipe.

`NAME.reference.json` holds one entry for each experiment that was kept: the plan, the columns that verdicts are made from,
the evaluations, and the tolerance that the run's twin had measured, if there was one. As a `Run` it is compared like any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from runner.compare.align import align
from runner.compare.cause import experiment_differences
from runner.compare.columns import Array, Columns
from runner.compare.pairs import Verdict, compare_two
from runner.compare.read import BATCH_COLUMNS, UPDATE_COLUMNS, LeftOut, Run, read_run
from runner.compare.session import TWIN_ENDING
from runner.errors import RecordError
from runner.plan import Plan
from runner.rundir import RunFolder, write_text

VERSION = 1
ENDING = ".reference.json"
LIMIT = 5_000  # updates that are kept: a reference must stay small


@dataclass(frozen=True, slots=True)
class Reference:
    """One kept run, and the distances of its twin."""

    run: Run
    twin: tuple[Array, Array] | None


def keep(path: Path, file: Path) -> Run:
    """Put the run at `path` into a reference file, in the place of an entry of the same experiment.

    Raises RecordError for a run that cannot be read or has not finished.
    """
    run = read_run(path)
    if isinstance(run, LeftOut):
        raise RecordError(f"{path}: {run.reason}")
    if run.state != "finished" or run.plan.disturb:
        raise RecordError(
            f"{path}: {'is a twin' if run.plan.disturb else run.state}; a reference must be a finished run"
        )
    if run.count > LIMIT:
        raise RecordError(f"{path}: {run.count} updates are too many for a reference; keep a run of at most {LIMIT}")
    twin = read_run(path.resolve().with_name(path.resolve().name + TWIN_ENDING))
    entry: dict[str, Any] = {
        "plan": json.loads(run.plan.to_json()),
        "updates": {n: _listed(run.updates[n]) for n in UPDATE_COLUMNS},
        "evals": run.evals,
    }
    if isinstance(twin, Run) and twin.plan.disturb:
        pair = align(run, twin)
        entry["twin"] = {"loss": _listed(pair.loss), "grad_norm": _listed(pair.norm)}
    others = [e for e in _entries(file) if e["plan"]["experiment"] != run.plan.experiment] if file.exists() else []
    write_text(file, json.dumps({"version": VERSION, "runs": [*others, entry]}, allow_nan=False) + "\n")
    return run


def read_references(file: Path) -> list[Reference]:
    """The kept runs of a file. Raises RecordError."""
    found = []
    for entry in _entries(file):
        try:
            plan = Plan.from_json(json.dumps(entry["plan"]))
            updates: Columns = {n: _array(entry["updates"][n], n) for n in UPDATE_COLUMNS}
            twin = entry.get("twin")
            distances = (_array(twin["loss"], ""), _array(twin["grad_norm"], "")) if twin else None
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise RecordError(f"{file} is no reference of this version: {str(error).splitlines()[0]}") from None
        run = Run(RunFolder(file), plan, {"state": "finished"}, updates, entry["evals"], name="the reference")
        run.__dict__["batches"] = {n: np.empty(0) for n in BATCH_COLUMNS}  # not kept: they would make most of the file
        found.append(Reference(run, distances))
    return found


def against(references: list[Reference], run: Run) -> Verdict | list[str]:
    """The verdict on a run against the reference of its experiment; where there is none, what differs from the first."""
    for reference in references:
        if reference.run.experiment == run.experiment:
            return compare_two(reference.run, run, reference.twin, None)
    return experiment_differences(references[0].run, run)


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text())
        if content["version"] != VERSION or not content["runs"]:
            raise RecordError(f"{file} is a reference of version {content['version']}; this is version {VERSION}")
        entries: list[dict[str, Any]] = content["runs"]
        return entries
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{file} is no reference") from None


def _listed(values: Array) -> Any:
    """A column for JSON: a constant one as a single number; what is no number as text, the digest in hexadecimal."""
    if values.dtype == np.uint64:
        return [f"{v:016x}" for v in values.tolist()]
    plain = [v if np.isfinite(v) else str(v) for v in values.tolist()]
    return {"count": len(plain), "all": plain[0]} if len(set(plain)) == 1 else plain


def _array(values: Any, name: str) -> Array:
    if isinstance(values, dict):
        return np.full(int(values["count"]), float(values["all"]))
    if name == "digest":
        return np.array([int(v, 16) for v in values], dtype=np.uint64)
    return np.array([float(v) for v in values])
