"""Losses and gradients that are no numbers: where they came from is named, and all processes do the same about them."""

from __future__ import annotations

import re

import pytest

from tests.running import Bench

pytestmark = pytest.mark.ranks

POLICIES = ("accumulate", "no_sync", "every_batch", "backward_only")
SPLITS = [(1, 4), (2, 2), (4, 1)]
IN_ORDER = ("data.shuffle=false", "batch.size=4", "optim.lr=0.1")  # three windows of four micro-batches of one item
VALUES = [1.0] * 12


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("item", [0, 6, 11])
@pytest.mark.parametrize(("processes", "accum"), SPLITS)
def test_stop_names_the_place(bench: Bench, processes: int, accum: int, item: int, kind: str, every: int) -> None:
    """Rank, update and micro-batch, whenever the losses are read; rows end with the update at fault."""
    update, micro = 1 + item // 4, item % 4
    settings = (*IN_ORDER, cpus(processes), f"accum={accum}", f"log.every={every}")
    run = bench.fail("Scalar", {"values": VALUES, kind: [item]}, *settings)
    status = run.folder.read_status()
    assert status["state"] == "failed"
    assert f"update {update} is not finite" in status["reason"]
    assert re.findall(r"rank (\d+) micro-batch (\d+) \(loss (\w+)\)", status["reason"]) == [
        (str(micro // accum), str(micro), kind)
    ]
    assert status["rank"] == micro // accum, "the rank at fault, not the one that was heard first"
    assert run.column("update") == list(range(1, update + 1))
    assert max(run.column("update", "batches")) == update
    assert len(run.batches) == 4 * update
    assert not run.folder.model.exists()


def test_stop_names_every_place(bench: Bench) -> None:
    run = bench.fail("Scalar", {"values": VALUES, "nan": [5, 7], "inf": [9]}, *IN_ORDER, "hardware=2cpu", "accum=2")
    found = re.findall(r"rank (\d+) micro-batch (\d+)", run.folder.read_status()["reason"])
    assert found == [("0", "1"), ("1", "3")], "of the first update that is not finite"


@pytest.mark.parametrize(("processes", "accum"), SPLITS)
def test_stop_control(bench: Bench, processes: int, accum: int) -> None:
    """The control: numbers that are large, negative or zero are numbers."""
    values = [1e30, -1e30, 0, 1] * 3
    run = bench.run(
        "Scalar",
        {"values": values},
        "data.shuffle=false",
        "batch.size=4",
        "optim.lr=0",
        cpus(processes),
        f"accum={accum}",
    )
    assert len(run.updates) == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_gradient_alone(bench: Bench, processes: int) -> None:
    """A finite loss whose gradient is none: told as what it is."""
    run = bench.fail("Scalar", {"values": [1, 1, 1, 1, 1, 7, 1, 1], "rooted": 7.0}, *IN_ORDER, cpus(processes))
    reason = run.folder.read_status()["reason"]
    assert "update 2 is not finite" in reason
    assert "every micro-batch's loss is finite" in reason
    assert "norm is nan" in reason


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("processes", "accum"), SPLITS)
def test_skip(bench: Bench, processes: int, accum: int, policy: str, kind: str) -> None:
    """One row is marked; the update changes no weights and leaves the schedule where it was; ranks agree."""
    settings = (*IN_ORDER, "nonfinite=skip", "schedule=linear", cpus(processes), f"accum={accum}", f"sync={policy}")
    run = bench.run("Scalar", {"values": VALUES, kind: [6], "watch": True}, *settings)
    assert run.column("skipped") == [False, True, False]
    assert run.column("lr") == pytest.approx([0.1, 0.1 * 2 / 3, 0.1 * 2 / 3])
    assert float(run.weights["w"]) == pytest.approx(1 - 0.1 - 0.1 * 2 / 3)
    rows = [run.watched(rank) for rank in range(processes)]
    assert rows[0][0]["weights"] == rows[0][1]["weights"] != rows[0][2]["weights"]
    assert all(row["weights"] == first["weights"] for rank in rows for row, first in zip(rank, rows[0], strict=True))
    losses = run.column("loss")
    assert losses[0] == 1.0
    assert losses[1] != losses[1] or losses[1] == float("inf")
    assert losses[2] == pytest.approx(0.9)


@pytest.mark.parametrize("processes", [1, 2])
def test_skip_of_a_gradient(bench: Bench, processes: int) -> None:
    settings = (*IN_ORDER, "nonfinite=skip", cpus(processes))
    run = bench.run("Scalar", {"values": [1, 1, 1, 1, 1, 7, 1, 1], "rooted": 7.0}, *settings)
    assert run.column("skipped") == [False, True]
    assert float(run.weights["w"]) == pytest.approx(0.9)


def test_skip_of_everything_leaves_the_weights(bench: Bench) -> None:
    settings = (*IN_ORDER, "nonfinite=skip", "hardware=2cpu", "accum=2")
    run = bench.run("Scalar", {"values": VALUES, "nan": list(range(12))}, *settings)
    assert run.column("skipped") == [True] * 3
    assert float(run.weights["w"]) == 1.0


def test_skip_control_schedule(bench: Bench) -> None:
    """The control: a schedule that counts windows goes on through the skipped one."""
    settings = (*IN_ORDER, "nonfinite=skip", "schedule=linear", "hardware=2cpu", "accum=2")
    run = bench.run("Scalar", {"values": VALUES, "nan": [6], "fault": "schedule_by_window"}, *settings)
    assert run.column("lr") != pytest.approx([0.1, 0.1 * 2 / 3, 0.1 * 2 / 3])


def test_skip_control_agreement(bench: Bench) -> None:
    """The control: a process that asks only its own losses applies what its peer skips; they part, and the run fails."""
    settings = (*IN_ORDER, "nonfinite=skip", "hardware=2cpu", "accum=2", "hardware.timeout=5")
    run = bench.fail("Scalar", {"values": VALUES, "nan": [6], "fault": "skip_alone"}, *settings)
    assert len(run.updates) < 3


@pytest.mark.parametrize("rank", [0, 1])
def test_another_failure_is_not_hidden(bench: Bench, rank: int) -> None:
    """A rank fails for a reason of its own while a loss that is no number waits to be read: told, and soon."""
    values = VALUES[:8] + [9.0 if i // 2 == rank else 1.0 for i in range(4)]
    settings = (*IN_ORDER, "hardware=2cpu", "accum=2", "log.every=10")
    run = bench.fail("Scalar", {"values": values, "nan": [6], "raises": 9.0}, *settings, within=30)
    status = run.folder.read_status()
    assert status["state"] == "failed"
    assert status["rank"] == rank
    assert "ValueError: a value that the task refuses" in status["reason"]
