"""The first node of a run over several: it has the run's folder, waits for the others, and hands them the plan.

Every node runs one command. The others take the plan from here (`runner.launch.joining`), start their ranks, and
send back what these write; this one appends it to the run's files. The ranks themselves meet at a store of rank 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from rich.console import Console

from runner.errors import RecordError, RunnerError, WorkerFailed
from runner.launch.door import Door, taken
from runner.launch.ending import undisturbed
from runner.launch.fault import Fault, Kind, failure, waited
from runner.launch.network import bound, interface_of, listen
from runner.launch.peer import Peer
from runner.launch.progress import Progress, Silent
from runner.launch.ranks import GRACE, Place, Ranks
from runner.plan import Plan
from runner.rundir import RunFolder

AWAY = 5.0  # seconds of silence after which a node counts as gone when something has failed


def check_meeting(plan: Plan) -> None:
    """Raises ConfigError where the other nodes of a plan could not reach this one."""
    if plan.config.hardware.nodes > 1 and plan.config.rendezvous is not None:
        taken(plan.config.rendezvous, bound).close()  # whoever was let in now would be sent away


class Nodes:
    """The other nodes, over all jobs of a command."""

    def __init__(self, rendezvous: str, arguments: Sequence[str], out: Console):
        """Raises ConfigError where this machine cannot listen at `rendezvous`."""
        self._rendezvous, self._out = rendezvous, out
        self._peers: dict[int, Peer] = {}
        self._jobs = 0
        self.facts: dict[int, dict[str, Any]] = {}
        self._door = Door(rendezvous, arguments, out)
        self.address = self._door.address

    def gather(self, plan: Plan) -> None:
        """Wait until all nodes of a plan have joined. Raises RunnerError naming those that have not, or are gone."""
        count, limit = plan.config.hardware.nodes, plan.config.node.wait
        deadline = time.monotonic() + limit
        told = False
        while missing := [n for n in range(1, count) if n not in self._peers]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RunnerError(f"no sign of {_nodes(missing)} after {limit:g} s. {self._typed(missing)}")
            if not told and left < limit - 1:
                told = True
                what = f"waiting for {_nodes(missing)}. {self._typed(missing)}"
                self._out.print(what, markup=False, highlight=False, soft_wrap=True)
            wait(self._door.connections, timeout=min(left, 1.0))
            self._drop_lost()
            self._admit(plan)
        for number in range(1, count):
            list(self._peers[number].hear())
            if self._peers[number].lost:
                raise RunnerError(f"{self._peers[number].name} has left: {self._peers[number].lost}")

    def _drop_lost(self) -> None:
        """A node that has left before the run began may come back."""
        for number, peer in list(self._peers.items()):
            list(peer.hear())
            if peer.lost:
                self._out.print(f"{peer.name} has left: {peer.lost}", markup=False, highlight=False, soft_wrap=True)
                self._peers.pop(number).close()

    def launch(self, plan: Plan, folder: RunFolder, progress: Progress | Silent) -> None:
        """Run all ranks of a plan, here and on the other nodes. Raises WorkerFailed with the first one's own error."""
        hardware = plan.config.hardware
        each = hardware.processes // hardware.nodes
        peers = {n: self._peers[n] for n in range(1, hardware.nodes)}
        listener = listen(self.address)
        here = Place(
            first=0,
            count=each,
            size=hardware.processes,
            address=self.address,
            port=listener.getsockname()[1],
            interface=interface_of(self.address),
            listener=listener,
            name=f"node 0, {os.uname().nodename}",
        )
        self._jobs += 1
        job = _Job(self._jobs, Ranks(here), peers, folder, hardware.timeout, self._door)
        for rank in range(each, hardware.processes):  # what the others print arrives line by line, perhaps never
            folder.log(rank).touch()
        try:
            for number, peer in peers.items():
                place = {"first": number * each, "address": self.address, "port": here.port}
                peer.tell("job", number=self._jobs, plan=plan.to_json(), **place)
            job.ranks.start(plan, folder)
            job.watch(progress)
        except WorkerFailed as error:
            job.end(str(error))
            raise
        except BaseException as error:
            job.end(
                f"node 0 was ended by {'SIGINT' if isinstance(error, KeyboardInterrupt) else error or type(error).__name__}"
            )
            raise
        finally:
            with undisturbed():
                job.ranks.end()
            progress.finish()

    def close(self) -> None:
        """No more jobs: the other commands end, too."""
        for peer in self._peers.values():
            peer.tell("bye")
            peer.close()
        self._door.close()

    def _admit(self, plan: Plan) -> None:
        """Take in the nodes that have come and fit."""
        limit = plan.config.hardware.timeout
        self._door.look(plan.config.hardware.nodes, self._peers)
        for number, (peer, hello) in self._door.admitted().items():
            peer.bear(limit)
            peer.tell("welcome", limit=limit)
            self._peers[number], self.facts[number] = peer, hello

    def _typed(self, missing: Sequence[int]) -> str:
        line = f"python -m runner node.rank={missing[0]} rendezvous={self._rendezvous}"
        return f"Type there: {line}"


class _Job:
    """One run over all nodes, seen from the first."""

    def __init__(
        self, number: int, ranks: Ranks, peers: dict[int, Peer], folder: RunFolder, timeout: float, door: Door
    ):
        self._number, self._full, self._door = number, False, door
        self.ranks, self._peers, self._folder, self._timeout = ranks, peers, folder, timeout
        self._done: set[int] = set()
        self._ended: set[int] = set()
        self._told: list[Fault] = []

    def watch(self, progress: Progress | Silent) -> None:
        """Until all ranks of all nodes have ended well. Raises WorkerFailed as soon as one has not."""
        while self.ranks.sentinels or len(self._done) < len(self._peers):
            well = self.ranks.ended_well(self._wait(progress.interval))
            if not well or self._told or self._gone(self._timeout):
                raise self._failure()
            progress.show()
        progress.show()

    def end(self, why: str) -> None:
        """Tell the other nodes that this run is over, and take in what their ranks have written."""
        for peer in self._peers.values():
            peer.tell("end", why=why)
        self.ranks.end()
        deadline = time.monotonic() + 3 * GRACE
        while len(self._ended) < len(self._peers) and time.monotonic() < deadline:
            if len(self._ended) + len(self._gone(AWAY)) >= len(self._peers):
                break
            self._wait(0.2)

    def _wait(self, seconds: float) -> list[object]:
        """What is ready within so many seconds; the messages of other nodes are taken in."""
        lines = [p.connection for n, p in self._peers.items() if not p.lost and n not in self._ended]
        ready = wait([*self.ranks.sentinels, *lines, *self._door.connections], timeout=seconds)
        self._door.look(len(self._peers) + 1, self._peers)  # who comes late is told so
        for number, peer in self._peers.items():
            for message in peer.hear():
                self._take(number, message)
        return list(ready)

    def _take(self, number: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if message.get("job") != self._number:  # the last word on the one before
            return
        if kind == "rows" and not self._full:
            try:
                _append(self._folder, message)
            except RecordError:
                self._full = True
                raise
        elif kind == "done":
            self._done.add(number)
        elif kind == "failed":
            facts = {k: message[k] for k in ("message", "rank", "trace", "time")}
            self._told.append(Fault(Kind(message["cause"]), **facts))
        elif kind == "ended":
            self._ended.add(number)

    def _gone(self, limit: float) -> list[Fault]:
        """The nodes that are not heard of any more."""
        each = self.ranks.place.count
        found = []
        for number, peer in self._peers.items():
            if number in self._done or not (peer.lost or peer.silent_for > limit):
                continue
            ranks = ", ".join(str(number * each + i) for i in range(each))
            why = peer.lost or f"not heard of for {peer.silent_for:.0f} s"
            message = f"{peer.name} went missing with rank {ranks} of {self.ranks.place.size}: {why}"
            found.append(Fault(Kind.gone, message, number * each))
        return found

    def _failure(self) -> WorkerFailed:
        """The error to report: the one that did not follow from another, wherever it was."""
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            if any(f.certain for f in [*self.ranks.faults(), *self._told]):
                break
            self.ranks.ended_well(self._wait(0.2))
        faults = [*self.ranks.faults(), *self._told, *self._gone(AWAY)]
        if waited(faults):
            faults += self.ranks.silent() or self._ask()
        return failure(faults or self._gone(0.0))

    def _ask(self) -> list[Fault]:
        """The ranks on other nodes that have said nothing while others waited for them."""
        before = len(self._told)
        for peer in self._peers.values():
            peer.tell("ask")
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and len(self._told) == before:
            self._wait(0.2)
        return self._told[before:]


def _append(folder: RunFolder, message: dict[str, Any]) -> None:
    """Rows of another node's ranks, or what they printed, into the run's own files, in one write."""
    rank = message["rank"]
    path = folder.batches if rank is None else folder.log(int(rank))
    text = "".join(f"{line}\n" for line in message["lines"])
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def _nodes(numbers: Sequence[int]) -> str:
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {', '.join(map(str, numbers))}"
