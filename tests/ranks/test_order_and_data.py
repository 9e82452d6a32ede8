"""Order and data: cases O1 to O6, each beside a fault that the same check must catch. Every item once, in every window
the same items on every setup, and an end that is clear wherever the data end."""

from __future__ import annotations

from collections import Counter

import pytest

from runner.errors import WorkerFailed
from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

POLICIES = ("accumulate", "no_sync", "every_batch", "backward_only")
STILL = "optim.lr=0"  # nothing is learnt, so the loss of a micro-batch of one item is the item's id


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def visits(run: Run) -> list[int]:
    """The ids that were trained on, in the order of the run. Needs micro-batches of one item, and lr 0."""
    return [round(loss) for loss in run.column("loss", "batches")]


# O1: remainders


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_remainder_on_four_processes(bench: Bench, remainder: str, policy: str) -> None:
    """O1: 10 items in windows of 4; what an item moves its own weight by tells how often it was used, and in how full a window."""
    settings = ("batch.size=4", "hardware=4cpu", f"batch.remainder={remainder}", "data.shuffle=false", "optim.lr=1")
    run = bench.run("Ids", {"items": 10}, *settings, f"sync={policy}")
    quarter, half = -1 / 4, -1 / 2
    right = {
        "keep": [quarter] * 8 + [half] * 2,
        "pad": [2 * quarter] * 2 + [quarter] * 8,
        "drop": [quarter] * 8 + [0.0] * 2,
    }[remainder]
    assert run.weights["w"].tolist() == pytest.approx(right)
    assert run.column("items") == {"keep": [4, 4, 2], "pad": [4, 4, 4], "drop": [4, 4]}[remainder]
    assert len(run.batches) == sum(run.column("items"))


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize(("remainder", "right"), [("keep", 10), ("pad", 12), ("drop", 8)])
def test_remainder_shuffled(bench: Bench, remainder: str, right: int, processes: int) -> None:
    """The same ids are visited whatever the processes, and what is left over follows the shuffled order."""
    settings = ("batch.size=4", f"batch.remainder={remainder}", STILL, "budget.epochs=2")
    run = bench.run("Ids", {"items": 10}, *settings, cpus(processes), f"accum={4 // processes}")
    alone = bench.run("Ids", {"items": 10}, *settings, "accum=4")
    assert visits(run) == visits(alone)
    assert len(visits(run)) == 2 * right
    assert run.column("digest") == alone.column("digest")
    if remainder == "keep":
        assert sorted(visits(run)[:10]) == list(range(10))


@pytest.mark.parametrize("fault", ["lost_tail", "order_by_rank"])
def test_remainder_control(bench: Bench, fault: str) -> None:
    """The control of O1, in micro-batches of two: items are lost, or every process shuffles for itself."""
    settings = ("batch.size=4", "hardware=2cpu", "optim.lr=1")
    right = bench.run("Ids", {"items": 9}, *settings).weights["w"]
    assert sorted(right.tolist()) == pytest.approx([-1.0] + [-0.25] * 8)
    wrong = bench.run("Ids", {"items": 9, "fault": fault}, *settings).weights["w"]
    assert sorted(wrong.tolist()) != pytest.approx([-1.0] + [-0.25] * 8)


def test_remainders_show_in_the_digests(bench: Bench) -> None:
    """Runs that saw other items in a window can be told apart by their rows."""
    settings = ("batch.size=4", "hardware=4cpu", "data.shuffle=false", "optim.lr=1")
    digests = {
        r: bench.run("Ids", {"items": 10}, *settings, f"batch.remainder={r}", "sync=accumulate").column("digest")
        for r in ("keep", "pad", "drop")
    }
    assert digests["keep"][:2] == digests["pad"][:2] == digests["drop"]
    assert digests["keep"][2] != digests["pad"][2]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("accum", [1, 2])
def test_fewer_items_than_processes(bench: Bench, policy: str, accum: int) -> None:
    """O1: 2 items on 4 processes: two processes take part with nothing, and nobody waits for ever."""
    settings = (f"batch.size={4 * accum}", f"accum={accum}", "hardware=4cpu", "optim.lr=1", f"sync={policy}")
    run = bench.run("Ids", {"items": 2}, *settings, "data.shuffle=false", "budget.epochs=3")
    assert run.weights["w"].tolist() == pytest.approx([-1.5, -1.5])
    assert run.column("weight") == [2.0] * 3
    assert run.column("rank", "batches") == ([0, 1] if accum == 1 else [0, 0]) * 3


def test_fewer_items_than_processes_control(bench: Bench) -> None:
    """The control: a process of its own order takes an item twice and leaves one out."""
    settings = ("batch.size=4", "hardware=4cpu", "optim.lr=1", "budget.epochs=8")
    right = bench.run("Ids", {"items": 2}, *settings).weights["w"].tolist()
    wrong = bench.run("Ids", {"items": 2, "fault": "order_by_rank"}, *settings).weights["w"].tolist()
    assert right == pytest.approx([-4.0, -4.0])
    assert wrong != pytest.approx([-4.0, -4.0])


def test_nothing_left_is_told_before_training(bench: Bench) -> None:
    settings = ("batch.size=4", "hardware=4cpu", "batch.remainder=drop")
    with pytest.raises(WorkerFailed, match=r"2 items are less than the observed batch of 4.*batch.remainder=keep"):
        bench.run("Ids", {"items": 2}, *settings)


# O2: shuffling


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_epochs_are_different_permutations(bench: Bench, workers: int) -> None:
    """O2: three epochs of 8 ids on 2 processes, with loader workers that are kept, are three permutations, the same in every run."""
    settings = ("batch.size=4", "accum=2", "hardware=2cpu", STILL, "budget.epochs=3", f"data.workers={workers}")
    run = bench.run("Ids", {"items": 8}, *settings)
    epochs = [visits(run)[n : n + 8] for n in (0, 8, 16)]
    assert_permutations(epochs)
    assert visits(bench.run("Ids", {"items": 8}, *settings, again=True)) == visits(run)
    assert visits(bench.run("Ids", {"items": 8}, *settings, "data.workers=0")) == visits(run)
    assert visits(bench.run("Ids", {"items": 8}, *settings, "seed=43")) != visits(run)


def assert_permutations(epochs: list[list[int]]) -> None:
    assert all(sorted(ids) == list(range(8)) for ids in epochs)
    assert all(count == 1 for count in Counter(map(tuple, epochs)).values())


@pytest.mark.parametrize("fault", ["same_order", "order_by_rank"])
def test_permutations_control(bench: Bench, fault: str) -> None:
    """The control of O2: every epoch in the first one's order; every process in an order of its own."""
    settings = ("batch.size=4", "accum=2", "hardware=2cpu", STILL, "budget.epochs=3")
    seen = visits(bench.run("Ids", {"items": 8, "fault": fault}, *settings))
    with pytest.raises(AssertionError):
        assert_permutations([seen[n : n + 8] for n in (0, 8, 16)])


# O3: evaluation


@pytest.mark.parametrize("size", [12, 24, 84])
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_evaluation_counts_every_item_once(bench: Bench, processes: int, size: int) -> None:
    """O3: losses 0..9 have the mean 4.5, also where processes have unequal shares or none."""
    run = bench.run("Ids", {"items": 12, "evaluated": 10}, f"batch.size={size}", STILL, cpus(processes))
    assert (run.evals[-1]["loss"], run.evals[-1]["weight"]) == (4.5, 10.0)


def test_evaluation_control(bench: Bench) -> None:
    """The control of O3: the average of the averages of three processes, of which one has fewer items."""
    arguments = {"items": 12, "evaluated": 10, "fault": "eval_mean_of_ranks"}
    run = bench.run("Ids", arguments, "batch.size=12", STILL, cpus(3))
    assert run.evals[-1]["loss"] != 4.5


# O4: parameters that some processes do not use


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("uses", "a", "b"),
    [
        (["a", ""], 0.5, 0.0),
        (["", "a"], 0.5, 0.0),
        (["a", "b"], 0.5, 0.5),
        (["b", "", "", "a"], 0.25, 0.25),
        (["", "", "ab", "a"], 0.5, 0.25),
        (["", "", "", ""], 0.0, 0.0),
    ],
)
def test_parameter_used_by_some(bench: Bench, uses: list[str], a: float, b: float, policy: str) -> None:
    """O4: a gradient of 1 on one process is averaged with zeros, wherever in the window it is, and nothing hangs.

    Two equal windows: what one leaves behind would spoil the next."""
    size = len(uses)
    settings = (f"batch.size={size}", f"accum={size // 2}", "optim.lr=1", "data.shuffle=false", f"sync={policy}")
    run = bench.run("Branches", {"uses": uses * 2}, *settings, "hardware=2cpu")
    alone = bench.run("Branches", {"uses": uses * 2}, *settings[:-1], "hardware=cpu")
    for one in (run, alone):
        assert float(one.weights["a"]) == pytest.approx(1 - 2 * a)
        assert float(one.weights["b"]) == pytest.approx(1 - 2 * b)


def test_parameter_used_by_some_control(bench: Bench) -> None:
    """The control of O4: without the sum over processes."""
    settings = ("batch.size=2", "optim.lr=1", "data.shuffle=false", "hardware=2cpu")
    run = bench.run("Branches", {"uses": ["a", ""] * 2, "fault": "no_reduction"}, *settings)
    assert float(run.weights["a"]) != pytest.approx(0.0)


@pytest.mark.parametrize("processes", [1, 2])
def test_unused_parameter_is_treated_alike(bench: Bench, processes: int) -> None:
    """A parameter that nothing used decays alike on all setups: its gradient is zero, not missing."""
    settings = ("batch.size=2", "optim.lr=0.1", "optim.weight_decay=0.5", cpus(processes))
    run = bench.run("Branches", {"uses": ["a", "a"]}, *settings)
    assert float(run.weights["b"]) == pytest.approx(1 - 0.1 * 0.5)


# O5: ends

STOP = ("batch.size=2", STILL, "hardware=2cpu", "eval.every=1", "early_stop.metric=score", "hardware.timeout=5")
SCORES = [
    [3, 9, 9, 9, 9, 9, 9, 9],
    [9, 2, 1, 1, 1, 1, 1, 1],
]  # the sum: 12, 11, 10, 10, ...; rank 0 alone would stop at 2


def test_early_stop_is_agreed(bench: Bench) -> None:
    """O5: the metric gets worse on rank 0 at once, but on the whole not before the fourth evaluation: both stop there."""
    run = bench.run("Ids", {"items": 16, "evaluated": 2, "scores": SCORES, "watch": True}, *STOP)
    assert run.column("score", "evals") == [6.0, 5.5, 5.0, 5.0]
    assert [len(run.watched(rank)) for rank in (0, 1)] == [4, 4]
    assert len(run.updates) == 4
    assert run.folder.read_status()["state"] == "finished"


def test_early_stop_control(bench: Bench) -> None:
    """The control of O5: processes that decide by their own share part; the run ends with an error, not never."""
    arguments = {"items": 16, "evaluated": 2, "scores": SCORES, "watch": True, "fault": "eval_alone"}
    run = bench.fail("Ids", arguments, *STOP)
    assert len(run.watched(0)) < 4


@pytest.mark.parametrize(("mode", "patience", "updates"), [("min", 0, 4), ("min", 2, 6), ("max", 0, 2), ("max", 1, 3)])
def test_patience_and_mode(bench: Bench, mode: str, patience: int, updates: int) -> None:
    arguments = {"items": 16, "evaluated": 2, "scores": SCORES}
    run = bench.run("Ids", arguments, *STOP, f"early_stop.mode={mode}", f"early_stop.patience={patience}")
    assert len(run.updates) == updates


@pytest.mark.parametrize("raises", ["StopIteration", "ValueError"])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_end_on_one_process(bench: Bench, workers: int, raises: str) -> None:
    """O5: a dataset that breaks off on rank 1 ends the run with that rank's own error; rank 0 does not wait for ever."""
    arguments = {"items": 40, "item": 14, "rank": 1, "raises": raises}
    settings = ("batch.size=4", "hardware=2cpu", "data.shuffle=false", STILL, f"data.workers={workers}")
    run = bench.fail("Short", arguments, *settings, within=30)
    status = run.folder.read_status()
    assert (status["state"], status["rank"]) == ("failed", 1)
    assert "14" in status["reason"]


def test_data_that_do_not_end(bench: Bench) -> None:
    """The control: the same data, whole."""
    arguments = {"items": 40, "item": 14, "rank": 2}
    run = bench.run("Short", arguments, "batch.size=2", "hardware=2cpu", "data.shuffle=false", STILL)
    assert visits(run) == list(range(40))


# O6: iterable data sets


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_iterable_dataset_is_refused(bench: Bench, processes: int, workers: int) -> None:
    """O6: its items could be counted once for every loader worker, 24 for 12; so it is refused before any row is written."""
    settings = ("batch.size=4", cpus(processes), f"data.workers={workers}")
    run = bench.fail("Stream", {"items": 12}, *settings)
    assert "iterable" in run.folder.read_status()["reason"]
    assert "__getitem__" in run.folder.read_status()["reason"], "the message says what to return instead"
    assert not run.folder.batches.exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_twelve_items_are_twelve(bench: Bench, workers: int) -> None:
    """The control of O6: the same items as a list are accepted, and are 12 with two workers, too."""
    run = bench.run("Ids", {"items": 12}, "batch.size=1", STILL, f"data.workers={workers}")
    assert sorted(visits(run)) == list(range(12))
