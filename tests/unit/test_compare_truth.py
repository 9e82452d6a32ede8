"""Pairs of real runs with the right verdict on each: good ones must never be called different, broken ones never the same.

The broken runs come from `compare_faults`: a second trainer that has one fault at a time.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.compare.session import Comparison, compare
from runner.compare.verdict import Kind
from tests.unit import compare_faults as broken
from tests.unit.compare_simulation import Simulated, real

FOUR = ("hardware=4cpu", "batch=auto", "batch.per_device=16")  # 4 processes x 16 items
TWO = ("hardware=2cpu", "accum=2")  # 2 processes x 2 micro-batches of 16
ACCUM = ("accum=4",)
DROPOUT = "task.dropout=0.2"

Make = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A pair: how its runs are made, the right verdict, the first differing update, words of the first cause."""

    name: str
    a: str
    b: str
    kind: Kind
    first: int | None = None
    words: str = ""


RUNS: dict[str, Make] = {
    "accum": lambda p: real(p, *ACCUM),
    "accum again": lambda p: real(p, *ACCUM),
    "one pass": lambda p: real(p),
    "accum 16": lambda p: real(p, "accum=16"),
    "two": lambda p: Simulated(p, *TWO),
    "four": lambda p: Simulated(p, *FOUR),
    "fp64": lambda p: real(p, *ACCUM, "precision=fp64"),
    "bf16": lambda p: real(p, *ACCUM, "precision=bf16"),
    "disturbed": lambda p: _hide_twin(real(p, *ACCUM, disturb=True)),
    "seed 1": lambda p: real(p, *ACCUM, "seed=1"),
    "batch 32": lambda p: real(p, *ACCUM, "batch.size=32"),
    "adamw": lambda p: real(p, "optim=adamw", "optim.lr=1e-3"),
    "adamw two": lambda p: Simulated(p, *TWO, "optim=adamw", "optim.lr=1e-3"),
    "dropout accum": lambda p: real(p, *ACCUM, DROPOUT),
    "dropout two": lambda p: Simulated(p, *TWO, DROPOUT),
    "dropout one pass": lambda p: real(p, DROPOUT),
    "tokens": lambda p: real(p, "batch.size=16", task="Tokens"),
    "tokens two": lambda p: Simulated(p, "hardware=2cpu", "batch.size=16", "accum=2", task="Tokens"),
    "tokens accum": lambda p: real(p, "accum=4", "batch.size=16", task="Tokens"),
    "norm accum": lambda p: real(p, *ACCUM, "task.norm=true"),
    "norm one pass": lambda p: real(p, "task.norm=true"),
    "fast": lambda p: Simulated(p, "seeding=fast", DROPOUT, "eval.every=10"),
    "fast again": lambda p: Simulated(p, "seeding=fast", DROPOUT, "eval.every=10"),
    "other data": lambda p: _with_plan(real(p, *ACCUM), data="0123456789abcdef"),
    "each averaged alone": lambda p: broken.EachAveragedAlone(p, *TWO),
    "short window mis-scaled": lambda p: broken.ShortWindowMisscaled(p, *TWO),
    "last window dropped": lambda p: broken.LastWindowDropped(p, *TWO),
    "tail repeated": lambda p: broken.TailRepeated(p, *TWO),
    "rank 0 logged": lambda p: broken.RankZeroLogged(p, *TWO),
    "schedule per process": lambda p: broken.ScheduleSteppedPerProcess(p, *TWO),
    "order per process": lambda p: broken.OrderPerProcess(p, *TWO),
    "rank left out": lambda p: broken.RankLeftOut(p, *TWO),
    "summed": lambda p: broken.Summed(p, *TWO),
    "summed adamw": lambda p: broken.Summed(p, *TWO, "optim=adamw", "optim.lr=1e-3"),
    "items for tokens": lambda p: broken.ItemsForTokens(p, "hardware=2cpu", "batch.size=16", "accum=2", task="Tokens"),
    "padding counted": lambda p: broken.PaddingCounted(p, "hardware=2cpu", "batch.size=16", "accum=2", task="Tokens"),
    "masks by rank": lambda p: broken.MasksByRank(p, *TWO, DROPOUT),
    "evaluation draws": lambda p: broken.EvaluationDraws(p, "seeding=fast", DROPOUT, "eval.every=10"),
    "state lost": lambda p: broken.StateLost(p, *TWO, "optim.momentum=0.9", "optim.lr=0.02"),
    "momentum": lambda p: real(p, *ACCUM, "optim.momentum=0.9", "optim.lr=0.02"),
    "secretly half": lambda p: broken.SecretlyHalf(p, *TWO),
    "item lost": lambda p: broken.ItemLost(p, *TWO),
    "clipped": lambda p: broken.ClippedPerRank(p, *TWO),
    "not a number": lambda p: broken.NotANumber(p, *TWO),
    "one skipped": lambda p: broken.OneSkipped(p, *TWO),
    "not zeroed": lambda p: broken.NotZeroed(p, *TWO),
    "truncated": lambda p: _cut(real(p, *ACCUM), 41),
    "interrupted": lambda p: _cut(real(p, *ACCUM), 30, state="interrupted", reason="ended by SIGTERM"),
}

GOOD = [
    Case("the same run twice", "accum", "accum again", Kind.identical),
    Case("the second trainer, unbroken, against the runner", "accum", "two", Kind.equal),
    Case("4 processes", "accum", "four", Kind.equal),
    Case("4 against 2 processes", "four", "two", Kind.identical),
    Case("one pass against 4", "one pass", "accum", Kind.equal),
    Case("one pass against 16", "one pass", "accum 16", Kind.equal),
    Case("fp32 against fp64", "accum", "fp64", Kind.equal),
    Case("fp32 against bf16", "accum", "bf16", Kind.equal),
    Case("weights disturbed in the last place", "accum", "disturbed", Kind.equal),
    Case("adamw, one pass against 2 x 2", "adamw", "adamw two", Kind.equal),
    Case("dropout, the same micro-batches", "dropout accum", "dropout two", Kind.equal),
    Case("tokens, one pass against 2 x 2", "tokens", "tokens two", Kind.equal),
    Case("tokens, one pass against 4", "tokens", "tokens accum", Kind.equal),
    Case("evaluations in between, one stream", "fast", "fast again", Kind.identical),
    Case("dropout, other micro-batches", "dropout accum", "dropout one pass", Kind.incomparable, 1, "per_device"),
    Case("another seed", "accum", "seed 1", Kind.incomparable, None, "seed 42 against 1"),
    Case("another observed batch", "accum", "batch 32", Kind.incomparable, None, "observed batch 64 against 32"),
    Case("other data", "accum", "other data", Kind.incomparable, None, "data fingerprint"),
]

BROKEN = [
    Case("each micro-batch averaged alone", "accum", "each averaged alone", Kind.different, 23, "short window"),
    Case("short window mis-scaled", "accum", "short window mis-scaled", Kind.different, 23, "short window"),
    Case("last window dropped", "accum", "last window dropped", Kind.different, 23, "number of items: 29 against 64"),
    Case("tail repeated", "accum", "tail repeated", Kind.different, 23, "number of items: 29 against 64"),
    Case("rank 0's loss logged", "accum", "rank 0 logged", Kind.different, 1, "the loss of rank 0 alone"),
    Case("schedule stepped per process", "accum", "schedule per process", Kind.different, 2, "2 times as fast"),
    Case("an order of its own for every process", "accum", "order per process", Kind.different, 1, "other items"),
    Case("a rank left out from update 40 on", "accum", "rank left out", Kind.different, 40, "gradient norm"),
    Case("gradients summed", "accum", "summed", Kind.different, 1, "2 times the other"),
    Case("gradients summed, adamw hides it", "adamw", "summed adamw", Kind.different, 1, "2 times the other"),
    Case("items for tokens", "tokens accum", "items for tokens", Kind.different, 1, "gradient norm"),
    Case("padding counted", "tokens accum", "padding counted", Kind.different, 1, "other weights"),
    Case(
        "dropout masks by rank",
        "dropout accum",
        "masks by rank",
        Kind.different,
        1,
        "only 2, 3 differ (all those of rank 1",
    ),
    Case(
        "an evaluation that draws", "fast", "evaluation draws", Kind.different, 11, "after the evaluation at update 10"
    ),
    Case("momentum lost after update 24", "momentum", "state lost", Kind.different, 25, "loss"),
    Case("bf16 that the plan does not tell", "accum", "secretly half", Kind.different, 1, "gradient norm"),
    Case("an item lost in the second epoch", "accum", "item lost", Kind.different, 24, "other weights"),
    Case("clipped, though the plan says never", "accum", "clipped", Kind.different, None, ""),
    Case("not a number", "accum", "not a number", Kind.different, 17, "non-finite"),
    Case("one update skipped", "accum", "one skipped", Kind.different, 12, "skipped"),
    Case("gradients not zeroed from update 31 on", "accum", "not zeroed", Kind.different, 31, "gradient norm"),
    Case("a truncated log", "accum", "truncated", Kind.different, 42, "truncated"),
    Case("an interrupted run", "accum", "interrupted", Kind.different, 31, "SIGTERM"),
    Case(
        "batch normalization over other micro-batches",
        "norm accum",
        "norm one pass",
        Kind.different,
        1,
        "batch normalization",
    ),
]


def _hide_twin(folder: Path) -> Path:
    """A twin that does not say so: two runs that rounding alone sets apart."""
    return _with_plan(folder, disturb=False)


def _with_plan(folder: Path, **changes: object) -> Path:
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, **changes}))
    return folder


def _cut(folder: Path, updates: int, **status: str) -> Path:
    """The log as it is where a run ends early."""
    for name in ("updates", "batches"):
        path = folder / f"{name}.jsonl"
        lines = [line for line in path.read_text().splitlines(True) if json.loads(line)["update"] <= updates]
        path.write_text("".join(lines))
    (folder / "evals.jsonl").unlink()
    (folder / "model.pt").unlink()
    old = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**old, **status}))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run by its name, trained when it is first asked for."""
    root = tmp_path_factory.mktemp("runs")

    def get(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            RUNS[name](folder)
        return folder

    return get


def _compared(runs: Callable[[str], Path], case: Case) -> Comparison:
    return compare([str(runs(case.a)), str(runs(case.b))])


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c.name)
def test_good_pair(runs: Callable[[str], Path], case: Case) -> None:
    found = _compared(runs, case)
    if found.verdicts:
        verdict = found.verdicts[0]
        assert verdict.kind is case.kind, verdict.reason
        assert verdict.first == case.first
        assert case.words in verdict.reason
    else:  # two groups: the experiments differ
        from runner.compare.cause import experiment_differences

        assert case.kind is Kind.incomparable
        assert any(case.words in d for d in experiment_differences(*found.runs))
    assert found.exit_code == (0 if case.kind.same else 2)


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.name)
def test_broken_pair(runs: Callable[[str], Path], case: Case) -> None:
    found = _compared(runs, case)
    verdict = found.verdicts[0]
    assert verdict.kind is Kind.different, verdict.reason
    assert found.exit_code == 1
    if case.first is not None:
        assert verdict.first == case.first, verdict.reason
    assert case.words in verdict.reason
    # the order of the two runs must not matter
    other = compare([str(runs(case.b)), str(runs(case.a))]).verdicts[0]
    assert (other.kind, other.first) == (verdict.kind, verdict.first), other.reason


def test_clipping_is_seen_where_it_first_acts(runs: Callable[[str], Path]) -> None:
    """The norm is logged before clipping, so the first trace is the loss after the first clipped update."""
    verdict = compare([str(runs("accum")), str(runs("clipped"))]).verdicts[0]
    rows = [json.loads(line) for line in (runs("accum") / "updates.jsonl").read_text().splitlines()]
    clipped = next(r["update"] for r in rows if r["grad_norm"] > 0.6)
    assert verdict.first == clipped + 1, verdict.reason


def test_no_good_run_is_called_different_from_any_other(runs: Callable[[str], Path]) -> None:
    """All right runs of one experiment, every pair of them: 9 runs, 36 pairs."""
    names = ["accum", "accum again", "one pass", "accum 16", "two", "four", "fp64", "bf16", "disturbed"]
    found = compare([str(runs(n)) for n in names])
    assert len(found.verdicts) == len(list(itertools.combinations(names, 2)))
    coarse = [v for v in found.verdicts if "bf16" in (v.a.name, v.b.name)]
    assert {v.kind for v in found.verdicts if v not in coarse} <= {Kind.identical, Kind.equal}
    assert Kind.different not in {v.kind for v in coarse}  # too coarse to be called the same from curves alone


def test_a_twin_is_the_yardstick_and_no_run(runs: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(runs("accum"), tmp_path / "a")
    shutil.copytree(runs("one pass"), tmp_path / "b")
    real(tmp_path / "a-twin", *ACCUM, disturb=True)
    found = compare([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [t.name for t in found.twins] == ["a-twin"]
    assert len(found.verdicts) == 1
    assert found.verdicts[0].kind is Kind.equal
    assert "twin" in found.verdicts[0].reason
    weights = [_weights(tmp_path / n) for n in ("a", "a-twin")]
    assert weights[0] != weights[1]


def _weights(folder: Path) -> object:
    from runner.compare.read import Run, read_run

    run = read_run(folder)
    assert isinstance(run, Run)
    assert run.weights
    return run.weights


def test_a_given_tolerance_replaces_the_rule(runs: Callable[[str], Path]) -> None:
    pair = [str(runs("accum")), str(runs("two"))]
    assert compare(pair, tolerance=0.0).verdicts[0].kind is Kind.different
    assert compare(pair, tolerance=0.1).verdicts[0].kind is Kind.equal
    half = [str(runs("accum")), str(runs("secretly half"))]
    assert compare(half, tolerance=0.9).verdicts[0].kind is Kind.equal
