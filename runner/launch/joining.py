"""A node that is not the first: join, take every job's plan from the first node, run its ranks, hand over their rows.

It composes nothing and keeps nothing: its ranks write into a folder of its own, from which every whole line is sent
to the first node. Where that cannot be reached any more the folder stays, and is named.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import wait
from typing import Any

from runner.counts import counted
from runner.endpoint import endpoint
from runner.errors import ConfigError, Problem, RunnerError, WorkerFailed
from runner.follow import CHUNK
from runner.launch.ending import Terminated, signals_raised, undisturbed
from runner.launch.fault import Fault, Kind, failure, waited
from runner.launch.hardware import check_hardware
from runner.launch.introduction import introduction
from runner.launch.leavings import Kept, sweep
from runner.launch.network import interface_of
from runner.launch.outlet import Outlet
from runner.launch.peer import Peer
from runner.launch.ranks import GRACE, Place, Ranks
from runner.launch.warm import warm_up
from runner.plan import Plan
from runner.rundir import write_text
from runner.schema import Node

OWN = ("node.rank", "node.wait", "rendezvous")
DEFAULT_WAIT = Node().wait
FIRST_LIMIT = 60.0  # seconds of silence that are put up with before the first node has said what the limit is


@dataclass(frozen=True, slots=True)
class Seat:
    """A node's own part of its command line."""

    rank: int
    rendezvous: str
    wait: float


def seat_of(overrides: Sequence[str]) -> Seat | None:
    """The seat that a command line asks for; None on the first node, which composes the configuration. Raises ConfigError."""
    given = {
        key.lstrip("+"): value for key, _, value in (o.partition("=") for o in overrides) if key.lstrip("+") in OWN
    }
    rank = given.get("node.rank", "0")
    if not rank.isdigit() or int(rank) == 0:
        return None  # what is wrong with it is said with all the rest
    problems = list(_beyond(int(rank), overrides))
    where = given.get("rendezvous")
    if where is None or endpoint(where) is None:
        what = (
            f"'{where}' is no HOST:PORT"
            if where is not None
            else f"node.rank={rank} must be told where the first node is"
        )
        problems.append(Problem("rendezvous", what, "Type rendezvous=HOST:PORT as on the machine with node.rank=0"))
    try:
        seconds = float(given.get("node.wait", DEFAULT_WAIT))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        problems.append(Problem("node.wait", f"'{given['node.wait']}' is no number of seconds above 0"))
    if problems:
        raise ConfigError(problems)
    assert where is not None
    return Seat(int(rank), where, seconds)


def _beyond(rank: int, overrides: Sequence[str]) -> Iterator[Problem]:
    """A rank that the number of nodes does not have, where that was typed, too."""
    typed = [re.fullmatch(r"\+*(?:hardware=(\d+)node|hardware\.nodes=(\d+))", o) for o in overrides]
    counts = [int(found[1] or found[2]) for found in typed if found]
    if counts and rank >= counts[-1]:
        what = f"of {counted(counts[-1], 'node')}, counted from 0, {rank} is none"
        yield Problem("node.rank", what, f"Use node.rank={counts[-1] - 1}, say" if counts[-1] > 1 else "")


def common(arguments: Sequence[str]) -> list[str]:
    """What of a command line must be the same on all nodes: all but each node's own part."""
    return [a for a in arguments if a.partition("=")[0].lstrip("+") not in (*OWN, "run")]


def join(seat: Seat, arguments: Sequence[str]) -> int:
    """Serve the first node until it says goodbye. Returns the exit code; raises RunnerError where it cannot be reached."""
    warm_up()
    rank = seat.rank
    first = _connect(seat.rendezvous, seat.wait)
    try:
        first.tell("hello", **introduction(rank, arguments))
        answer = first.expect(FIRST_LIMIT)
        if answer is None:
            raise RunnerError(f"{first.name} does not answer: {first.lost or 'nothing was heard'}")
        if answer["kind"] == "refused":
            print(f"refused by {first.name}: {answer['why']}", file=sys.stderr)
            return ConfigError.exit_code
        print(f"joined {first.name} as node {rank}", flush=True)
        for path in sweep():
            print(f"a command that is gone has left rows that were not sent: {path}", file=sys.stderr, flush=True)
        return _serve(first, rank, float(answer["limit"]))
    finally:
        first.close()


def _serve(first: Peer, rank: int, limit: float) -> int:
    code = 0
    while (message := first.expect(limit)) is not None:
        if message["kind"] == "bye":
            return code
        if message["kind"] == "job":
            plan = Plan.from_json(message["plan"])
            limit = plan.config.hardware.timeout
            first.bear(limit)
            job = _Job(first, rank, plan, message)
            code = max(code, job.run())
            if first.lost and job.over:  # it said why before it left
                return code
    raise RunnerError(f"{first.name} went missing: {first.lost or f'not heard of for {limit:g} s'}")


def _connect(rendezvous: str, seconds: float) -> Peer:
    """The first node, once it is there. Raises RunnerError if it does not come."""
    where = endpoint(rendezvous)
    assert where is not None, "checked with the command line"
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            connected = socket.create_connection(where, timeout=5.0)
            return Peer(connected, f"the first node at {rendezvous}")
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or error
                raise RunnerError(
                    f"nobody answers at {rendezvous} after {seconds:g} s ({why}). Start the first node there with node.rank=0 "
                    f"rendezvous={rendezvous}, and see that no firewall stands between"
                ) from error
        if not told:
            told = True
            print(f"waiting for the first node at {rendezvous}", flush=True)
        time.sleep(0.3)


class _Job:
    """This node's part in one run."""

    def __init__(self, first: Peer, rank: int, plan: Plan, told: dict[str, Any]):
        self._first, self._plan, self._number = first, plan, told["number"]
        hardware = plan.config.hardware
        place = Place(
            first=told["first"],
            count=hardware.processes // hardware.nodes,
            size=hardware.processes,
            address=told["address"],
            port=told["port"],
            interface=interface_of(_own_address(first)),
            name=f"node {rank}, {os.uname().nodename}",
        )
        self._ranks = Ranks(place)
        self.over: str | None = None  # what the first node says about the end
        self._kept = Kept(rank)
        self._folder = self._kept.folder
        self._outlet = Outlet(self._folder, place, self._tell, self._note)

    def run(self) -> int:
        """All of this node's ranks, to their end. Returns the exit code."""
        try:
            with signals_raised():
                check_hardware(self._plan)
                self._folder.logs.mkdir()
                write_text(self._folder.plan, self._plan.to_json() + "\n")
                self._ranks.start(self._plan, self._folder)
                self._watch()
            self._outlet.close()
            self._tell("done")
            return 0
        except WorkerFailed as error:
            print(self.over or str(error), file=sys.stderr, flush=True)
            return 1
        except ConfigError as error:
            self._report(Fault(Kind.own, f"{self._ranks.place.name}: {error}", time=time.time()))
            print(error, file=sys.stderr, flush=True)
            return 1
        except (KeyboardInterrupt, Terminated) as ended:
            how = str(ended) or "SIGINT"
            self._report(Fault(Kind.own, f"{self._ranks.place.name} was ended by {how}", time=time.time()))
            if isinstance(ended, Terminated):
                raise SystemExit(128 + ended.number) from None
            raise
        finally:
            with undisturbed():
                self._leave()

    def _watch(self) -> None:
        """Until the ranks here have ended well. Raises WorkerFailed as soon as one has not, or the run is over."""
        limit = self._plan.config.hardware.timeout
        while self._ranks.sentinels:
            well = self._ranks.ended_well(self._wait(0.5))
            if self.over is not None:
                raise WorkerFailed(self.over)
            if not well or self._first.lost or self._first.silent_for > limit:
                raise self._failure(limit)
            self._outlet.hand_over(CHUNK)

    def _failure(self, limit: float) -> WorkerFailed:
        """What failed here, told to the first node, which answers with what failed first of all."""
        deadline = time.monotonic() + GRACE
        sent: Fault | None = None
        while time.monotonic() < deadline and self.over is None and not self._first.lost:
            best = min(self._ranks.faults(), key=lambda f: f.kind, default=None)
            if best is not None and (
                sent is None or best.kind < sent.kind
            ):  # the first node waits for no more than that
                sent = best
                self._report(sent)
            self._ranks.ended_well(self._wait(0.2))
        faults = self._ranks.faults()
        if waited(faults):
            faults += self._ranks.silent()
        self._wait_for_verdict()
        if self.over is not None:
            return WorkerFailed(self.over)
        if self._first.lost or self._first.silent_for > min(limit, GRACE):
            why = self._first.lost or f"not heard of for {self._first.silent_for:.0f} s"
            faults.append(Fault(Kind.gone, f"{self._first.name} (node 0) went missing with rank 0: {why}"))
        return failure(faults)

    def _wait_for_verdict(self) -> None:
        deadline = time.monotonic() + 2 * GRACE
        while time.monotonic() < deadline and self.over is None and not self._first.lost:
            self._wait(0.2)

    def _wait(self, seconds: float) -> list[object]:
        lines = [] if self._first.lost else [self._first.connection]
        ready = wait([*self._ranks.sentinels, *lines], timeout=seconds)
        for message in self._first.hear():
            if message["kind"] == "ask":
                for fault in self._ranks.silent():
                    self._report(fault)
            elif message["kind"] in ("end", "bye"):
                self.over = message.get("why", "the first node has ended the run")
        return list(ready)

    def _tell(self, kind: str, **facts: Any) -> None:
        if not self._first.lost:
            self._first.tell(kind, job=self._number, **facts)

    def _note(self, size: int) -> None:
        """So many bytes of the rows were sent, unless that has failed."""
        if not self._first.lost:
            self._kept.sent(size)

    def _report(self, fault: Fault) -> None:
        facts = {"message": fault.message, "rank": fault.rank, "trace": fault.trace, "time": fault.time}
        self._tell("failed", cause=int(fault.kind), **facts)

    def _leave(self) -> None:
        """End the ranks, hand over the last rows. The folder goes, unless nobody has taken what is in it."""
        self._ranks.end()
        if not self._first.lost:
            self._outlet.close()
        self._tell("ended")
        if self._first.lost and self._kept.holds_rows():
            print(f"what was not sent is in {self._folder.path}", file=sys.stderr, flush=True)
            self._kept.leave()
        else:
            self._kept.remove()


def _own_address(first: Peer) -> str:
    """This machine's address on the way to the first node."""
    with socket.socket(fileno=os.dup(first.connection.fileno())) as same:
        address: str = same.getsockname()[0]
        return address
