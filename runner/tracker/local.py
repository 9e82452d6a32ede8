"""`tracker=local`: the run's folder is all there is. Nothing to start, nothing to write."""

from __future__ import annotations

from collections.abc import Sequence

from runner.plan import Plan
from runner.tracker.point import Point


class Local:
    """A tracker that takes no points."""

    def plan(self, plan: Plan) -> None:
        """Nothing to do: the plan is in the folder."""

    def log(self, points: Sequence[Point]) -> None:
        """Nothing to do: the rows are in the folder."""

    def close(self, state: str) -> None:
        """Nothing to do: the status is in the folder."""
