"""Logs and records: cases L1 and L2, and that rows of several processes are whole."""

from __future__ import annotations

import pytest

from runner.summary import Summary
from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

MIB = 2**20


def rate_is_right(rate: float) -> bool:
    """About 1,280 tokens a second. Sleeping cannot be faster than it is; a busy machine makes it a little slower."""
    return 0.75 * 1280 < rate < 1.02 * 1280


@pytest.fixture(scope="module")
def sleeping(bench: Bench) -> Run:
    """L1: 2 processes, 4 items of 16 tokens in a micro-batch, accum 3, 0.1 s asleep in each."""
    arguments = {"values": [[1] * 16] * 24, "sleep": 0.1}
    return bench.run("Scalar", arguments, "batch.size=24", "accum=3", "hardware=2cpu", "budget.updates=4")


def test_rate_counts_all_processes_and_no_time_twice(sleeping: Run) -> None:
    summary = Summary.of(sleeping.folder)
    assert summary.rate is not None
    assert rate_is_right(summary.rate)
    assert sleeping.column("weight") == [384.0] * 4
    assert all(0.3 <= seconds < 0.4 for seconds in sleeping.column("seconds")[1:])
    assert all(0.1 <= r["seconds"] < 0.16 for r in sleeping.batches if r["update"] > 1)
    assert summary.seconds is not None
    assert 0.1 <= summary.seconds[0] < 0.13


def test_rate_control(sleeping: Run) -> None:
    """The control of L1: one process's tokens; items for tokens; the processes' times added up; micro-batches for windows."""
    rows, batches = sleeping.updates[1:], [r for r in sleeping.batches if r["update"] > 1]
    seconds = sum(r["seconds"] for r in rows)
    own = sum(r["weight"] for r in batches if r["rank"] == 0) / seconds
    items = sum(r["items"] for r in rows) / seconds
    twice = sum(r["weight"] for r in rows) / sum(r["seconds"] for r in batches)
    one = sum(r["weight"] for r in rows) / sum(r["seconds"] for r in batches if r["rank"] == 0 and r["micro"] == 0)
    assert not any(map(rate_is_right, (own, items, twice, one)))


def peak_is_its_own(run: Run, megabytes: int) -> bool:
    """The job's peak is what it held itself, but for a few bytes."""
    return megabytes * MIB <= max(run.column("peak_memory")) < (megabytes + 0.01) * MIB


def test_peak_memory_is_the_jobs_own(bench: Bench) -> None:
    """L2: a job that holds 400 MB, then one that holds 4 MB, under one fork server."""
    settings = ("batch.size=1", "optim.lr=0")
    large = bench.run("Holder", {"megabytes": [400]}, *settings)
    small = bench.run("Holder", {"megabytes": [4]}, *settings)
    assert peak_is_its_own(large, 400)
    assert peak_is_its_own(small, 4)


def test_peak_memory_control(bench: Bench) -> None:
    """The control of L2: a measure that is not begun anew, as the peak of a process's resident memory, keeps what came before."""
    settings = ("batch.size=1", "optim.lr=0", "data.shuffle=false", "log.memory=true")
    run = bench.run("Holder", {"megabytes": [400, 4, 40]}, *settings)
    assert [round(peak / MIB, 2) for peak in run.column("peak_memory")] == [400, 4, 40], "each window has its own"
    kept = bench.run("Holder", {"megabytes": [400, 4, 40], "fault": "peak_stays"}, *settings)
    assert [round(peak / MIB, 2) for peak in kept.column("peak_memory")] == [400, 400, 400]


@pytest.mark.parametrize("processes", [1, 4])
def test_one_row_for_each_micro_batch_and_update(bench: Bench, processes: int) -> None:
    """Rows of several processes do not mix, and none is lost."""
    choice = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    settings = ("batch.size=8", choice, f"accum={8 // processes}", "budget.epochs=40", "optim.lr=0", "log.every=7")
    run = bench.run("Ids", {"items": 13}, *settings)
    assert run.column("update") == list(range(1, 81))
    places = [(r["update"], r["micro"]) for r in run.batches]
    assert places == [(u, m) for u in range(1, 81) for m in range(8 if u % 2 else 5)]
    assert all(r["rank"] == r["micro"] // (8 // processes) for r in run.batches)
