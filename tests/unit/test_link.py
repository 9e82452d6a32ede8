"""Links before anything starts: what may be asked for, what the plan says, what the kernel is told, what a simulated one takes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from runner.link import shaping
from runner.link.shaping import Shape
from runner.rounds import rows_of
from runner.surroundings import Link
from runner.sync.simulated import SimulatedLink, seconds_on
from tests.unit.test_config import plan, problems

TWO = ["hardware=2node", "task=digits"]


@pytest.mark.parametrize(
    ("choice", "values"),
    [
        ("10gbit", (10000, 0, 0, 0)),
        ("1gbit", (1000, 0, 0, 0)),
        ("350mbit", (350, 0, 0, 0)),
        ("100mbit", (100, 0, 0, 0)),
        ("20mbit", (20, 0, 0, 0)),
        ("wan", (100, 20, 2, 0.01)),
    ],
)
def test_choices(choice: str, values: tuple[float, ...]) -> None:
    link = plan(*TWO, f"link={choice}").config.link
    assert (link.name, link.rate, link.delay, link.jitter, link.loss) == (choice, *values)


def test_every_value_can_be_set() -> None:
    link = plan(*TWO, "link=350mbit", "link.delay=5").config.link
    assert (link.rate, link.delay) == (350, 5)
    link = plan(*TWO, "link=custom", "link.rate=0.5", "link.jitter=2", "link.loss=1.5").config.link
    assert (link.rate, link.jitter, link.loss, link.simulate) == (0.5, 2, 1.5, False)


WRONG = {
    "link=custom": ("link.rate", "link.rate=200"),
    "link.delay=5": ("link.delay", "link=350mbit"),
    "link.simulate=true": ("link.simulate", "link=350mbit"),
    "link=350mbit link.rate=0": ("link.rate", "greater than 0"),
    "link=350mbit link.loss=100": ("link.loss", "less than 100"),
    "link=350mbit link.delay=-1": ("link.delay", "greater than or equal to 0"),
    "link=350mbit link.latency=1": ("link.latency", "delay"),
    "link=slow": ("link", "350mbit"),
    "link=350mbit link.simulate=true link.loss=1": ("link.loss", "link.loss=0"),
    "link=350mbit link.simulate=true hardware.parallel=fsdp": ("link.simulate", "hardware.parallel=fsdp"),
    "link=350mbit link.simulate=true seeding=bitwise": ("link.simulate", "seeding=bitwise"),
    "link=350mbit rendezvous=10.0.0.5:29400": ("link", "rendezvous"),
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_cannot_be(typed: str) -> None:
    key, told = WRONG[typed]
    (line,) = problems("hardware=2node", *typed.split())
    assert line.startswith(f"{key}: ")
    assert told in line


def test_a_link_and_a_repetition_are_no_part_of_the_experiment() -> None:
    one, other = plan(*TWO, "link=1gbit"), plan(*TWO, "link=1gbit", "link.delay=1")
    assert one.experiment == other.experiment
    assert one.setup != other.setup
    again = plan(*TWO, "link=1gbit", "repeat=2")
    assert (again.experiment, again.setup) == (one.experiment, one.setup)


def test_the_plan_notes_a_link_that_is_not_used_or_not_real() -> None:
    assert any("nothing passes through" in n for n in plan("hardware=2cpu", "link=1gbit").notes)
    assert any("is simulated" in n for n in plan(*TWO, "link=1gbit", "link.simulate=true").notes)
    assert not any("link" in n for n in plan(*TWO, "link=1gbit").notes)


def test_two_nodes_are_joined_directly_and_more_of_them_in_between() -> None:
    two, three, late = Shape(2, 350.0), Shape(3, 350.0), Shape(2, 350.0, delay=1.0)
    assert [n for n, _ in shaping.pairs(two, ["a", "b"])] == [0]
    assert [n for n, _ in shaping.pairs(three, ["a", "b", "c"])] == [None] * 3
    assert [n for n, _ in shaping.pairs(late, ["a", "b"])] == [None] * 2
    assert (two.by_hand, three.by_hand, late.by_hand) == (False, False, True)
    assert shaping.pairs(Shape(1, 350.0), ["a"]) == []
    assert shaping.node_commands(Shape(1, 350.0), 0) == ["link set lo up"]
    assert len({shaping.address(n) for n in range(shaping.NODES)}) == shaping.NODES


def test_the_kernel_is_told_the_rate_in_bits() -> None:
    assert "rate 350000000bit burst 131072b" in shaping.rate_command(Shape(2, 350.0), "ve0")
    assert "rate 500000bit" in shaping.rate_command(Shape(2, 0.5), "ve0")
    assert "burst 1250000b" in shaping.rate_command(Shape(2, 10_000.0), "ve0")


def test_how_long_a_bucket_is_on_a_simulated_link() -> None:
    """Two processes send it whole; four send 6 quarters of it, in 6 steps that each wait for the delay twice."""
    link = Link(name="custom", rate=8.0, delay=10.0)  # a million bytes a second, less the headers
    assert seconds_on(link, 1448, 2) == pytest.approx(1514e-6 + 2 * 2 * 0.010)
    assert seconds_on(link, 4 * 1448, 4) == pytest.approx(6 * 1514e-6 + 6 * 2 * 0.010)


def test_buckets_wait_for_each_other_on_a_simulated_link() -> None:
    import time

    link = SimulatedLink(Link(name="custom", rate=1000.0, delay=15.0), 2)
    start, first, second = time.monotonic(), torch.futures.Future(), torch.futures.Future()
    carried = [link.carry(first, 8), link.carry(second, 8)]
    first.set_result(torch.tensor(1.0))
    second.set_result(torch.tensor(2.0))
    assert [float(c.wait()) for c in carried] == [1.0, 2.0]
    assert time.monotonic() - start >= 0.060
    failing: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    broken = link.carry(failing, 8)
    failing.set_exception(RuntimeError("the peer is gone"))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        broken.wait()


@dataclass
class Told:
    """What the table of rounds reads of a summary."""

    seconds: tuple[float, float] | None
    collectives: int | None = 4
    bytes: int | None = 100
    batches: int = 29


def test_rounds_are_put_together_and_compared_within_a_round() -> None:
    jobs = [
        ((f"repeat={n}", "hardware=2node", f"sync={policy}", "accum=4"), Told((seconds, 9.0)))
        for n, slow in ((1, 1.0), (2, 3.0))
        for policy, seconds in (("every_batch", 2.0 * slow), ("accumulate", slow))
    ]
    jobs.append((("repeat=3", "hardware=2node", "sync=every_batch", "accum=4"), Told(None)))
    every, once = rows_of(jobs)  # type: ignore[arg-type]
    assert (every.name, once.name) == ("sync=every_batch", "sync=accumulate")
    assert list(every.seconds.values()) == [2.0, 6.0]
    assert list(every.ratios.values()) == [2.0, 2.0], "each by its own round, of which the second was disturbed"
    assert rows_of(jobs[:2]) == [], "nothing was repeated"  # type: ignore[arg-type]
