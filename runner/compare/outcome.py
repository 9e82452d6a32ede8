"""Several seeds on both sides: do two setups end at the same place, as far as seeds let one tell?

Two one-sided t-tests (TOST; D. Schuirmann, 1987): the outcomes are equivalent if the confidence interval of the difference
of their means lies within a margin. The margin is what another seed does to the outcome: `MARGIN` standard deviations between
the seeds of one setup. Pair by pair the difference may be known much better than that spread; then the margin is taken from the
least that the spread can be, or a margin that is too wide by chance would let too many differences pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import mean, variance

import numpy as np

from runner.compare.read import Run

ALPHA = 0.05
ALPHA_UNLIKE = 0.01  # to call outcomes different: a sweep holds many tests, and none of them should cry wolf
MARGIN = 2.0
SEEDS = 3
TAIL = 0.1  # of the updates: what the final training loss is the mean of, where nothing was evaluated


@dataclass(frozen=True, slots=True)
class Test:
    """One outcome of two setups. `low` and `high` bound the difference of means, b - a, at 1 - 2 ALPHA."""

    name: str
    seeds: tuple[int, int]
    means: tuple[float, float]
    spread: float
    margin: float
    low: float
    high: float
    unlike: bool  # whether the means differ beyond doubt: zero lies outside of Welch's 1 - ALPHA_UNLIKE interval
    paired: bool

    @property
    def equivalent(self) -> bool:
        return self.margin > 0 and -self.margin < self.low and self.high < self.margin

    def __str__(self) -> str:
        verdict = (
            "equivalent" if self.equivalent else "different" if self.unlike else "cannot say: more seeds are needed"
        )
        least = f" and at least {self.margin / MARGIN:.2g} at {1 - ALPHA:.0%} confidence" if self.paired else ""
        return (
            f"{self.name}: {self.means[0]:.5g} against {self.means[1]:.5g} ({self.seeds[0]} and {self.seeds[1]} seeds{', pair by pair' if self.paired else ''}); "
            f"difference {self.low:+.2g} to {self.high:+.2g} at {1 - 2 * ALPHA:.0%} confidence, margin +-{self.margin:.2g} "
            f"({MARGIN:g} times the spread between seeds, which is {self.spread:.2g}{least}): {verdict}"
        )


def outcomes(run: Run) -> dict[str, float]:
    """The final numbers of a run: the last evaluation's loss and metrics, or the mean of its last training losses."""
    if run.evals:
        last = run.evals[-1]
        found = {k: v for k, v in last.items() if k not in ("update", "epoch", "weight")}
        numbers = {f"final {k}": float(v) for k, v in found.items() if isinstance(v, int | float)}
        return {k: v for k, v in numbers.items() if np.isfinite(v)}
    tail = run.updates["loss"][-max(1, round(TAIL * run.count)) :]
    return {"final training loss": float(tail.mean())} if np.isfinite(tail).all() else {}


def test_outcomes(left: list[Run], right: list[Run]) -> list[Test]:
    """One test for each outcome that all runs have. Needs `SEEDS` seeds on both sides, each seed once.

    Where both sides have the same seeds, the differences are taken seed by seed: what a seed does to both cancels.
    """
    left, right = (sorted(side, key=lambda r: r.plan.config.seed) for side in (left, right))
    paired = [r.plan.config.seed for r in left] == [r.plan.config.seed for r in right]
    sides = [[outcomes(r) for r in side] for side in (left, right)]
    names = [n for n in sides[0][0] if all(n in found for side in sides for found in side)]
    tests = [_test(n, [f[n] for f in sides[0]], [f[n] for f in sides[1]], paired) for n in names]
    return [t for t in tests if t is not None]


def _test(name: str, a: list[float], b: list[float], paired: bool) -> Test | None:
    """The interval of the difference: Student's over pairs, or Welch's for groups whose spreads may differ."""
    from scipy.special import (  # scipy comes with scikit-learn; its statistics would take a second to load
        chdtri,
        stdtrit,
    )

    spread = sqrt((variance(a) * (len(a) - 1) + variance(b) * (len(b) - 1)) / (len(a) + len(b) - 2))
    if spread == 0:
        return None
    shift, least = mean(b) - mean(a), spread
    terms = variance(a) / len(a), variance(b) / len(b)
    error = sqrt(sum(terms))
    freedom = sum(terms) ** 2 / (terms[0] ** 2 / (len(a) - 1) + terms[1] ** 2 / (len(b) - 1))
    doubt = (
        float(stdtrit(freedom, 1 - ALPHA_UNLIKE / 2)) * error
    )  # not pair by pair: few seeds may differ alike by chance
    if paired:
        least *= sqrt((len(a) - 1) / float(chdtri(len(a) - 1, ALPHA)))
        error, freedom = sqrt(variance([y - x for x, y in zip(a, b, strict=True)]) / len(a)), len(a) - 1.0
    reach = float(stdtrit(freedom, 1 - ALPHA)) * error
    return Test(
        name, (len(a), len(b)), (mean(a), mean(b)), spread, MARGIN * least, shift - reach, shift + reach,
        unlike=abs(shift) > doubt, paired=paired,
    )  # fmt: skip
