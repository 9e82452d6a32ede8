"""References: what a recipe's run looked like where somebody kept it, small enough to lie beside the recipe.

`NAME.reference.json` holds one entry for each experiment that was kept: the plan, the columns that verdicts are made from,
the evaluations, the tolerance that the run's twins had measured, if there were any, and what it was made with. As a `Run` it is
compared like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from runner.compare.cause import experiment_differences
from runner.compare.columns import Array, Columns
from runner.compare.find import find
from runner.compare.pairs import compare_two
from runner.compare.read import BATCH_COLUMNS, UPDATE_COLUMNS, LeftOut, Run, read_run
from runner.compare.session import twins_beside, yardstick
from runner.compare.verdict import Kind
from runner.errors import RecordError
from runner.plan import Plan
from runner.rundir import RunFolder, write_text

VERSION = 1
ENDING = ".reference.json"
KEPT = ("update", "loss", "weight", "lr", "grad_norm", "items", "digest", "skipped")  # what a verdict is made from
LIMIT = 5_000  # updates that are kept: a reference must stay small


PLAN = ("experiment", "setup", "arithmetic", "notes", "data", "draws", "config")


@dataclass(frozen=True, slots=True)
class Reference:
    """One kept run, as the file has it; the largest distances of its twins; what it was made with: torch's version and
    the processor."""

    plan: dict[str, Any]
    updates: Columns
    evals: list[dict[str, Any]]
    twin: tuple[Array, Array] | None
    made_with: str | None

    def beside(self, run: Run) -> Run:
        """The kept run, to be compared with `run`. Raises ValidationError for a plan that no longer is one.

        A reference outlives versions of this program: keys of the configuration that were added since are taken from
        `run`, and those that are gone are left out.
        """
        own = json.loads(run.plan.to_json())
        completed = {k: _completed(self.plan[k], own[k]) for k in PLAN if k in self.plan}
        plan = Plan.model_validate_json(json.dumps({**own, **completed}))
        kept = Run(RunFolder(run.folder.path), plan, {"state": "finished"}, self.updates, self.evals)
        kept.name = "the reference"
        kept.__dict__["batches"] = {n: np.empty(0) for n in BATCH_COLUMNS}  # not kept: they would make most of the file
        kept.__dict__["weights"] = None
        return kept


def _completed(kept: Any, own: Any) -> Any:
    """`kept` with the keys of `own`, where both are sections of one kind. A task's own keys stay as they are."""
    if not (isinstance(kept, dict) and isinstance(own, dict)) or "_target_" in kept or "_target_" in own:
        return kept
    if kept.get("name") != own.get("name"):
        return kept
    return {k: _completed(kept[k], v) if k in kept else v for k, v in own.items()}


def keep(arguments: Sequence[str], file: Path) -> list[Run]:
    """Put runs into a reference file, each in the place of an entry of its experiment. Of several runs of one experiment
    the first is kept, and twins count as what they are. Returns the runs that were kept.

    Raises RecordError for a run that cannot be read or has not finished.
    """
    paths, left_out = find(arguments)
    read = [read_run(path) for path in paths]
    for wrong in [*left_out, *(r for r in read if isinstance(r, LeftOut))]:
        raise RecordError(f"{wrong.path}: {wrong.reason}")
    runs = [r for r in read if isinstance(r, Run)]
    whole = [r for r in runs if not r.plan.disturb] if len(runs) > 1 else runs
    first = list({json.dumps(r.experiment, sort_keys=True, default=str): r for r in reversed(whole)}.values())[::-1]
    entries = [_entry(run) for run in first]
    if not entries:
        raise RecordError(f"{', '.join(arguments)}: holds twins alone; a reference must be a finished run")
    fresh = {e["plan"]["experiment"] for e in entries}
    others = [e for e in _entries(file) if e["plan"]["experiment"] not in fresh] if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"version": VERSION, "runs": [*others, *entries]}, allow_nan=False) + "\n")
    return first


def _entry(run: Run) -> dict[str, Any]:
    path = run.folder.path
    if run.state != "finished" or run.plan.disturb:
        raise RecordError(
            f"{path}: {'is a twin' if run.plan.disturb else run.state}; a reference must be a finished run"
        )
    if run.count > LIMIT:
        raise RecordError(f"{path}: {run.count} updates are too many for a reference; keep a run of at most {LIMIT}")
    entry: dict[str, Any] = {
        "plan": {k: v for k, v in json.loads(run.plan.to_json()).items() if k in PLAN},
        "made_with": _made_with(run),
        "updates": {n: _listed(run.updates[n]) for n in KEPT},
        "evals": run.evals,
    }
    twins = [t for t in map(read_run, twins_beside([path])) if isinstance(t, Run) and t.plan.disturb]
    reach = yardstick([run], twins)
    if reach is not None:
        entry["twin"] = {"loss": _rounded(reach[0]), "grad_norm": _rounded(reach[1])}
    return entry


def read_references(file: Path) -> list[Reference]:
    """The kept runs of a file. Raises RecordError."""
    found = []
    for entry in _entries(file):
        try:
            updates: Columns = {n: _array(entry["updates"][n], n) for n in KEPT}
            updates |= {n: np.full(len(updates["update"]), np.nan) for n in UPDATE_COLUMNS if n not in KEPT}
            twin = entry.get("twin")
            distances = (_array(twin["loss"], ""), _array(twin["grad_norm"], "")) if twin else None
            found.append(Reference(entry["plan"], updates, entry["evals"], distances, entry.get("made_with")))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{file} is no reference of this version: {str(error).splitlines()[0]}") from None
    return found


def against(references: Sequence[Reference], run: Run | LeftOut) -> tuple[Kind, str]:
    """The verdict on a run against the reference of its experiment, and its reason; where there is none, what differs
    from the one that is nearest to it."""
    if isinstance(run, LeftOut):
        return Kind.incomparable, run.reason
    try:
        kept = [reference.beside(run) for reference in references]
    except (KeyError, ValidationError) as error:
        return Kind.incomparable, f"the reference cannot be read by this version: {str(error).splitlines()[0]}"
    for reference, other_run in zip(references, kept, strict=True):
        if other_run.experiment != run.experiment:
            continue
        verdict = compare_two(other_run, run, reference.twin, None)
        here, where = _made_with(run), reference.made_with
        other = verdict.kind is Kind.different and None not in (here, where) and here != where
        return verdict.kind, verdict.reason + (f" (the reference was made with {where}, this with {here})" * other)
    nearest = min((experiment_differences(other_run, run) for other_run in kept), key=len)
    return Kind.incomparable, "; ".join(nearest)


def _made_with(run: Run) -> str | None:
    """torch's version and the kind of processor, as the run's folder has them."""
    try:
        environment = json.loads(run.folder.environment.read_text())
        return f"torch {environment['versions']['torch']} on {environment['hardware']['processor']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text())
        if content["version"] != VERSION or not content["runs"]:
            raise RecordError(f"{file} is a reference of version {content['version']}; this is version {VERSION}")
        entries: list[dict[str, Any]] = content["runs"]
        return entries
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{file} is no reference") from None


def _rounded(distances: Array) -> list[float | str]:
    """Distances need no more than three digits."""
    return [float(f"{v:.3g}") if np.isfinite(v) else str(v) for v in distances.tolist()]


def _listed(values: Array) -> Any:
    """A column for JSON: whole numbers as such, a constant as a single number, those of a count (1, 2, 3, ...) as where
    it starts; what is no number as text, the digest in hexadecimal."""
    if values.dtype == np.uint64:
        return [f"{v:016x}" for v in values.tolist()]
    plain = [(int(v) if v == int(v) else v) if np.isfinite(v) else str(v) for v in values.tolist()]
    if len(plain) > 1 and (np.diff(values) == 1).all():
        return {"count": len(plain), "from": plain[0]}
    return {"count": len(plain), "all": plain[0]} if len(set(plain)) == 1 else plain


def _array(values: Any, name: str) -> Array:
    if isinstance(values, dict) and "from" in values:
        return np.arange(int(values["count"]), dtype=float) + float(values["from"])
    if isinstance(values, dict):
        return np.full(int(values["count"]), float(values["all"]))
    if name == "digest":
        return np.array([int(v, 16) for v in values], dtype=np.uint64)
    return np.array([float(v) for v in values])
