"""The host waits for the device at most once per `log.every` windows: counted by the runner, and by watching torch's own methods."""

from __future__ import annotations

import pytest

from runner import loop
from tests.running import Bench
from tests.watching import counting_reads

LEARNING = ("batch.size=8", "accum=4", "optim.lr=0.01", "optim.clip=1.0", "schedule=cosine", "budget.updates=12")


def reads_of_windows(bench: Bench, every: int, reads: bool = False, *settings: str) -> tuple[list[int], int]:
    """The reads in each of twelve windows of a run in this process, and how many the runner has counted."""
    task, arguments = ("Scalar", {"values": [1, 2, 3, 4] * 6, "reads": True}) if reads else ("Text", {"items": 21})
    training, _ = bench.open(task, arguments, *LEARNING, f"log.every={every}", *settings)
    training.batches = iter(list(training.batches))  # what a dataset does on the host is no wait for the device
    found = []
    for window in training.windows:
        with counting_reads() as names:
            loop.update(training, window)
        found.append(len(names))
    return found, training.losses.reads


@pytest.mark.parametrize("every", [1, 5, 12, 100])
def test_at_most_one_read_per_log_period(bench: Bench, every: int) -> None:
    found, counted = reads_of_windows(bench, every)
    assert found == [1 if update % every == 0 else 0 for update in range(1, 13)]
    assert counted == sum(found) == 12 // every


def test_skipping_asks_once_per_window(bench: Bench) -> None:
    """`nonfinite=skip` has to decide in every window; that is counted, too."""
    found, counted = reads_of_windows(bench, 5, False, "nonfinite=skip")
    assert found == [2 if update % 5 == 0 else 1 for update in range(1, 13)]
    assert counted == sum(found)


def test_host_reads_control(bench: Bench) -> None:
    """The control: a task that reads its loss is seen, which the runner's own count cannot."""
    found, counted = reads_of_windows(bench, 5, True)
    assert counted == 2
    assert found == [4 + (update % 5 == 0) for update in range(1, 13)]


@pytest.mark.ranks
@pytest.mark.parametrize("policy", ["accumulate", "no_sync", "every_batch", "backward_only"])
def test_reads_of_ranks(bench: Bench, policy: str) -> None:
    """The same in every rank of a run of two, whatever the policy. A loader worker reads the data, so that the dataset's
    own reads are not counted; starting it, torch draws a seed in the first window."""
    settings = (*LEARNING, "hardware=2cpu", "log.every=4", "data.workers=1", f"sync={policy}")
    run = bench.run("Text", {"items": 21, "watch": True}, *settings)
    for rank in (0, 1):
        found = [r["reads"] for r in run.watched(rank)]
        assert found[0] == ["item"]
        assert found[1:] == ([[], [], [], ["tolist"]] * 3)[1:]
