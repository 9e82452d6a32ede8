"""Following files that grow, and the feed between a run's rows and its tracker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner import records, rundir
from runner.errors import ConfigError
from runner.follow import Tail
from runner.plan import Plan
from runner.rundir import RunFolder
from runner.tracker import check, feed
from runner.tracker.feed import Feed
from runner.tracker.point import Point
from tests.running import plan_of

ROWS = 500


class Keeping:
    """A tracker that remembers what it was given, and fails at a point if it is to."""

    def __init__(self, fail_at: int = -1):
        self.points: list[Point] = []
        self.states: list[str] = []
        self.planned: list[Plan] = []
        self.fail_at = fail_at

    def plan(self, plan: Plan) -> None:
        self.planned.append(plan)

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            if len(self.points) == self.fail_at:
                raise OSError("no space left")
            self.points.append(point)

    def close(self, state: str) -> None:
        self.states.append(state)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return rundir.create(tmp_path / "run", plan_of("Scalar", {}, "hardware=2cpu", "batch.size=4", "accum=2"), "", "")


def batch(update: int, micro: int, loss: float | None = 1.0) -> records.BatchRow:
    return records.BatchRow(update, micro, micro // 2, 1, loss, 1.0, 0.1, False)


def test_a_tail_gives_every_line_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    tail = Tail(file)
    assert tail.rows() == []  # not there yet
    file.write_bytes(b'{"a": 1}\n{"a": "NaN"}\n{"a":')
    first = tail.rows()
    assert first[0] == {"a": 1}
    assert first[1]["a"] != first[1]["a"], "NaN is read as the number"
    with file.open("ab") as more:
        more.write(b' 3}\n{"a": 4}\n')
    assert tail.rows(limit=4) == [{"a": 3}]
    assert tail.rows() == [{"a": 4}]
    assert tail.rows() == []


def test_rows_written_while_it_follows_are_handed_over_once_and_in_order(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "INTERVAL", 0.001)
    monkeypatch.setattr(feed, "CHUNK", 777)  # several looks for what is there, ends of looks within lines
    tracker = Keeping()
    one = Feed(folder, tracker)
    writer = threading.Thread(
        target=lambda: [records.append(folder.batches, [batch(u, m) for m in range(4)]) for u in range(1, ROWS + 1)]
    )
    writer.start()
    writer.join()
    folder.write_status("finished")
    one.finish()
    assert [p.batch for p in tracker.points] == list(range(1, 4 * ROWS + 1))
    assert [p.update for p in tracker.points] == [u for u in range(1, ROWS + 1) for _ in range(4)]
    assert tracker.states == ["finished"]
    assert len(tracker.planned) == 1


def test_null_values_are_left_out_of_a_point(folder: RunFolder) -> None:
    tracker = Keeping()
    one = Feed(folder, tracker)
    records.append(folder.batches, [batch(1, 0, None), batch(1, 1, float("nan"))])
    folder.write_status("finished")
    one.finish()
    empty, number = tracker.points
    assert "batch/loss" not in empty.values
    assert number.values["batch/loss"] != number.values["batch/loss"]
    assert number.values["batch/synced"] == 0


def test_a_tracker_that_fails_does_not_fail_the_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Keeping(fail_at=3)
    one = Feed(folder, tracker)
    records.append(folder.batches, [batch(1, m) for m in range(4)] + [batch(2, m) for m in range(4)])
    folder.write_status("finished")
    one.finish()
    assert len(tracker.points) == 3
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "no space left" in told[0]
    assert str(folder.path) in told[0]


def test_an_ending_that_the_status_tells_reaches_the_tracker(folder: RunFolder) -> None:
    tracker = Keeping()
    one = Feed(folder, tracker)
    folder.write_status("interrupted")
    one.finish()
    one.finish()  # twice does no harm
    assert tracker.states == ["interrupted"]


def test_a_folder_with_the_name_of_a_package_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("Scalar")
    tracked = plan.model_copy(update={"config": plan.config.model_copy(update={"tracker": _Wandb()})})
    monkeypatch.setitem(check._PACKAGES, "wandb", "wandb_of_a_test")
    (tmp_path / "wandb_of_a_test").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r'pip install "samestep\[wandb\]"'):
        check.check_tracker(tracked)
    (tmp_path / "wandb_of_a_test" / "__init__.py").write_text("raise SystemError('must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))  # which makes Python look again
    check.check_tracker(tracked)
    check.check_tracker(plan)


class _Wandb:
    """What `check` looks at in the configuration of the tracker."""

    name = "wandb"

    class mode:  # noqa: N801
        value = "offline"
