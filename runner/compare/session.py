"""Everything that one command compares: runs in groups of one experiment, a verdict for every pair, the seeds together."""

from __future__ import annotations

import glob
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from runner.compare.align import Pair, align
from runner.compare.columns import Array
from runner.compare.find import find
from runner.compare.outcome import SEEDS, Test, test_outcomes
from runner.compare.pairs import Verdict, compare_two
from runner.compare.read import LeftOut, Run, name_all, read_run, shown
from runner.compare.verdict import Kind
from runner.counts import counted

TWIN_ENDING = "-twin"
EARLY = 20  # updates before rounding has grown much


@dataclass(slots=True)
class Family:
    """Two setups of one experiment, each with several seeds."""

    left: list[Run]
    right: list[Run]
    tests: list[Test]
    verdict: str


@dataclass(slots=True)
class Comparison:
    """All that was found. `groups` hold runs of one experiment; runs of different groups cannot be compared."""

    runs: list[Run]
    groups: list[list[Run]]
    verdicts: list[Verdict]
    families: list[Family]
    left_out: list[LeftOut]
    twins: list[Run]

    @property
    def exit_code(self) -> int:
        """0: all the same; 1: some are different; 2: something could not be compared."""
        if any(v.kind is Kind.different for v in self.verdicts):
            return 1
        alone = any(len(g) == 1 for g in self.groups)
        unsure = any(not v.kind.same for v in self.verdicts)
        return 2 if self.left_out or alone or unsure or not self.verdicts else 0


def compare(arguments: Iterable[str], tolerance: float | None = None) -> Comparison:
    """Read and compare whatever runs the arguments name."""
    paths, left_out = find(arguments)
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        read = list(pool.map(read_run, [*paths, *twins_beside(paths)]))
    left_out += [r for r in read if isinstance(r, LeftOut)]
    runs = [r for r in read if isinstance(r, Run)]
    name_all(runs)
    twins = [r for r in runs if r.plan.disturb]
    runs, copies = _without_copies([r for r in runs if not r.plan.disturb])
    left_out += copies
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(run.experiment, sort_keys=True, default=str)].append(run)
    verdicts = []
    for group in groups.values():
        reach = yardstick(group, twins)
        verdicts += [compare_two(a, b, reach, tolerance) for a, b in combinations(group, 2)]
    families = _families(runs)
    _settle(verdicts, families)
    return Comparison(runs, list(groups.values()), verdicts, families, left_out, twins)


def twins_beside(paths: Sequence[Path]) -> list[Path]:
    """The twins that lie beside runs and are not among them."""
    known = {p.resolve() for p in paths}
    found = dict.fromkeys(t for p in known for t in p.parent.glob(glob.escape(p.name + TWIN_ENDING) + "*"))
    return [t for t in found if t not in known and (t / "plan.json").exists()]


def _without_copies(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Two copies of one run are no two runs: the clock's readings cannot be the same twice."""
    kept: dict[tuple[Any, ...], Run] = {}
    copies = []
    for run in runs:
        key = (run.count, run.status.get("started"), run.updates["seconds"].tobytes())
        if key in kept and kept[key].plan == run.plan:
            copies.append(
                LeftOut(
                    run.folder.path, f"is a copy of {shown(kept[key].folder.path)}: their clocks' readings are the same"
                )
            )
        else:
            kept[(*key, len(kept)) if key in kept else key] = run
    return list(kept.values()), copies


def yardstick(group: list[Run], twins: list[Run]) -> tuple[Array, Array] | None:
    """The largest distances of any twin from its run, update by update."""
    found: list[Pair] = []
    for twin in twins:
        for run in group:
            if run.experiment == twin.experiment and run.setup == twin.setup:
                found.append(align(run, twin))
                break
    if not found:
        return None
    longest = max(len(p.loss) for p in found)
    padded = [[np.pad(d, (0, longest - len(d)), mode="edge") for d in (p.loss, p.norm)] for p in found if len(p.loss)]
    return np.max([p[0] for p in padded], axis=0), np.max([p[1] for p in padded], axis=0)


def twin_text(run: Run, twin: Run) -> str:
    """How far rounding alone has moved a run's losses, early and in all."""
    distances = align(run, twin).loss
    if not len(distances):
        return f"{twin.name} has no update that {run.name} has"
    count = len(distances)
    early = f"{distances[:EARLY].max():.1e} from it in updates 1 to {EARLY}, " if count > EARLY else ""
    return f"rounding alone moves the losses of {run.name} (relative): {early}{distances.max():.1e} in {'all ' if early else ''}{count}"


def _families(runs: list[Run]) -> list[Family]:
    """Setups with several seeds, two by two."""
    by: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        experiment = {k: v for k, v in run.experiment.items() if k not in ("seed", "data")}
        setup = by[json.dumps(experiment, sort_keys=True, default=str)][json.dumps(run.setup, sort_keys=True)]
        if run.plan.config.seed not in {r.plan.config.seed for r in setup} and run.state == "finished":
            setup.append(run)
    found = []
    for setups in by.values():
        finished = [runs for runs in setups.values() if runs]
        for left, right in combinations(finished, 2):
            fewest = min(len(left), len(right))
            if fewest < SEEDS:
                found.append(
                    Family(left, right, [], f"cannot say: {counted(fewest, 'seed')}; it takes {SEEDS} on both sides")
                )
                continue
            tests = test_outcomes(left, right)
            if tests and all(t.equivalent for t in tests):
                text = "close"
            elif any(t.unlike and not t.equivalent for t in tests):
                text = "different"
            else:
                text = "cannot say: the interval is wider than the margin; more seeds would narrow it"
            found.append(Family(left, right, tests, text))
    return found


def _settle(verdicts: list[Verdict], families: list[Family]) -> None:
    """Where single curves could not tell, the seeds together may."""
    for verdict in verdicts:
        if not verdict.unsettled:
            continue
        for family in families:
            sides = (family.left, family.right)
            if not any(verdict.a in s and verdict.b in o for s, o in (sides, sides[::-1])):
                continue
            told = "; ".join(str(t) for t in family.tests)
            if family.verdict == "close":
                verdict.kind, verdict.reason = (
                    Kind.close,
                    f"{verdict.reason}. The outcome agrees within the noise between seeds: {told}",
                )
            elif family.verdict == "different":
                verdict.kind, verdict.reason = Kind.different, f"{verdict.reason}. The outcome differs: {told}"
            else:
                verdict.notes.append(f"the outcome: {family.verdict}" + (f" ({told})" if told else ""))
