"""What goes wrong between machines: whatever it is, every process everywhere ends in time, and says which node and rank.

Two nodes run for real, in network namespaces with a cable between them.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.machines import Machine, on, two_machines, why_not
from tests.commands import Command, Done, marked, rows, status, tiny, until, workshop

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]

TIMEOUT = 8.0  # of the group, in seconds
WITHIN = TIMEOUT + 15.0
PORT = 29400
SETTINGS = [*tiny(), "hardware=2node", f"hardware.timeout={TIMEOUT:g}", "task.pause=0.02", "task.say=hello"]


@dataclass
class Pair:
    """A run over two machines, as it goes on."""

    machines: tuple[Machine, Machine]
    commands: tuple[Command, Command]

    def run(self) -> Path:
        (status_file,) = self.commands[0].folder.rglob("status.json")
        return status_file.parent

    def rank(self, number: int) -> int:
        """The process of a rank."""
        found = re.search(r"pid (\d+)", (self.run() / "logs" / f"rank-{number}.log").read_text())
        assert found is not None
        return int(found[1])

    def updates(self) -> int:
        return max(
            (row["update"] for f in self.commands[0].folder.rglob("batches.jsonl") for row in rows(f)), default=0
        )

    def ends(self, node: int, left: set[int] = frozenset()) -> Done:  # type: ignore[assignment]
        """The end of one node's command and of all that it started, in time."""
        done = self.commands[node].wait(WITHIN)
        until(lambda: marked(self.commands[node].mark) <= left, 5, f"nothing of node {node} is left")
        return done


@contextmanager
def training(tmp_path: Path, updates: int = 100_000) -> Iterator[Pair]:
    """A run over two nodes, once rows of both have arrived at the first."""
    starts = [workshop(tmp_path / f"node-{n}") for n in range(2)]
    where = f"rendezvous=192.0.2.1:{PORT}"
    with two_machines() as machines:
        first = on(machines[0], starts[0], *SETTINGS, f"budget.updates={updates}", where)
        with first as zero, on(machines[1], starts[1], "node.rank=1", where) as one:
            pair = Pair(machines, (zero, one))
            heard = lambda: {row["rank"] for f in starts[0].rglob("batches.jsonl") for row in rows(f)}  # noqa: E731
            until(lambda: heard() == {0, 1} or zero.process.poll() is not None, 60, "both nodes train")
            assert zero.process.poll() is None, zero.said()
            yield pair


@dataclass(frozen=True)
class Fault:
    act: Callable[[Pair], None]
    said: str  # on the first node
    there: str | None  # on the other one; None where nobody is left to say anything


def _kill_node(pair: Pair) -> None:
    left = marked(pair.commands[1].mark)
    os.kill(pair.commands[1].process.pid, signal.SIGKILL)  # first, so that it cannot tell of the others' end
    for pid in left - {pair.commands[1].process.pid}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


FAULTS = {
    "a rank is killed": Fault(
        lambda p: os.kill(p.rank(1), signal.SIGKILL),
        r"rank 1 of 2 \(node 1, .*\) ended: killed by SIGKILL",
        r"rank 1 of 2 \(node 1, .*\) ended: killed by SIGKILL",
    ),
    "a node is killed": Fault(_kill_node, r"node 1, .* went missing with rank 1 of 2", None),
    "the cable is cut": Fault(
        lambda p: p.machines[1].unplug(),
        r"node 1, .* went missing with rank 1 of 2: not heard of",
        r"the first node at 192.0.2.1:29400 \(node 0\) went missing with rank 0: not heard of",
    ),
    "a rank is stopped": Fault(
        lambda p: os.kill(p.rank(1), signal.SIGSTOP),
        r"rank 1 of 2 \(node 1, .*\) does not answer: its process is stopped",
        r"rank 1 of 2 \(node 1, .*\) does not answer: its process is stopped",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_process_ends_in_time_and_one_line_names_node_and_rank(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    with training(tmp_path) as pair:
        before = pair.updates()
        fault.act(pair)
        begun = time.monotonic()
        done = pair.ends(0)
        other = pair.ends(1)
        assert time.monotonic() - begun < WITHIN
        assert done.code == 1
        assert re.fullmatch(fault.said + ".*", done.lines()[-1]), done.err
        assert status(pair.run())["state"] == "failed"
        assert re.search(fault.said, status(pair.run())["reason"])
        assert before > 0 and pair.updates() >= before, "what was there stays there"
        if fault.there is not None:
            assert other.code == 1
            assert re.search(fault.there, other.err), other.err


def test_a_cut_of_five_seconds_is_survived(tmp_path: Path) -> None:
    with training(tmp_path, updates=400) as pair:
        pair.machines[1].unplug()
        time.sleep(5.0)
        assert pair.updates() < 400, "it ended before the cut did"
        at_the_end_of_the_cut = pair.updates()
        pair.machines[1].plug()
        pair.ends(0).expect(0)
        pair.ends(1).expect(0)
        assert at_the_end_of_the_cut < pair.updates() == 400
        assert len(rows(pair.run() / "batches.jsonl")) == 800


def test_ctrl_c_on_either_node_ends_both(tmp_path: Path) -> None:
    with training(tmp_path) as pair:
        os.killpg(pair.commands[1].process.pid, signal.SIGINT)
        pair.ends(1).expect(130)
        done = pair.ends(0).expect(1)
        assert "node 1" in done.err and "SIGINT" in done.err, done.err
