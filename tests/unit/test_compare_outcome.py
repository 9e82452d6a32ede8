"""Several seeds on both sides: what the equivalence test says, how often it is wrong, and what it says with too few."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from runner.compare import outcome
from runner.compare.session import compare
from runner.compare.verdict import Kind
from tests.unit.compare_simulation import real

DROPOUT = ("task.dropout=0.2", "budget.updates=60")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seeds of two setups whose draws differ by design."""
    root = tmp_path_factory.mktemp("seeds")
    for seed in range(6):
        real(root / f"accum-{seed}", "accum=4", f"seed={seed}", *DROPOUT)
        real(root / f"one-{seed}", f"seed={seed}", *DROPOUT)
    return root


def test_seeds_turn_cannot_say_into_close(seeds: Path) -> None:
    found = compare([str(seeds)])
    assert {v.kind for v in found.verdicts} == {Kind.close}, [v.reason for v in found.verdicts]
    assert found.exit_code == 0
    for words in ("margin", "90% confidence", "6 and 6 seeds", "final loss", "final accuracy"):
        assert words in found.verdicts[0].reason


def test_two_seeds_cannot_say(seeds: Path) -> None:
    found = compare([str(seeds / f"{kind}-{seed}") for kind in ("accum", "one") for seed in (0, 1)])
    assert {v.kind for v in found.verdicts} == {Kind.incomparable}
    assert found.exit_code == 2
    assert "cannot say: 2 seeds; it takes 3 on both sides" in found.verdicts[0].notes[0]


def test_another_outcome_is_different(seeds: Path, tmp_path: Path) -> None:
    """The control: the same runs, but one side ends 5 spreads higher."""
    shutil.copytree(seeds, tmp_path / "seeds")
    values = [_last_loss(tmp_path / "seeds" / f"accum-{s}") for s in range(6)]
    for seed in range(6):
        path = tmp_path / "seeds" / f"one-{seed}" / "evals.jsonl"
        row = json.loads(path.read_text().splitlines()[-1])
        path.write_text(json.dumps({**row, "loss": row["loss"] + 5 * float(np.std(values, ddof=1))}) + "\n")
    found = compare([str(tmp_path / "seeds")])
    assert {v.kind for v in found.verdicts} == {Kind.different}
    assert "The outcome differs" in found.verdicts[0].reason
    assert found.exit_code == 1


def _last_loss(folder: Path) -> float:
    return float(json.loads((folder / "evals.jsonl").read_text().splitlines()[-1])["loss"])


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("count", [3, 5, 8])
def test_how_often_a_shift_as_large_as_the_margin_passes(count: int, paired: bool) -> None:
    """By construction at most 5%: 2,000 draws of two sides whose means are MARGIN standard deviations apart."""
    state = np.random.RandomState(count)
    wrong = right = 0
    for _ in range(2000):
        seed = state.randn(count) * 0.8 if paired else np.zeros(count)  # what both sides of a pair share
        scale = 0.6 if paired else 1.0
        a, b = seed + scale * state.randn(count), (seed if paired else 0) + scale * state.randn(count)
        near = outcome._test("x", a.tolist(), b.tolist(), paired)
        far = outcome._test("x", a.tolist(), (b + outcome.MARGIN).tolist(), paired)
        assert near is not None
        assert far is not None
        wrong += far.equivalent
        right += near.equivalent
    assert wrong / 2000 < 0.075  # 5%, the margin being estimated, too
    assert right / 2000 > (0.08 if count == 3 else 0.3)


def test_the_interval_is_students(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against numbers worked out by hand: differences 1, 2, 3: mean 2, standard error 0.57735, t(2; 0.95) = 2.919986."""
    found = outcome._test("x", [1.0, 5.0, 9.0], [2.0, 7.0, 12.0], paired=True)
    assert found is not None
    assert found.low == pytest.approx(2 - 2.919986 * 0.5773503, abs=1e-5)
    assert found.high == pytest.approx(2 + 2.919986 * 0.5773503, abs=1e-5)
    assert found.spread == pytest.approx(((16 + 25) / 2) ** 0.5)
