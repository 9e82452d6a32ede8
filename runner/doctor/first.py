"""The first node: waits for the others, asks each for what it has, tries every way between them, and judges."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from runner.doctor import judging
from runner.doctor.findings import Finding
from runner.doctor.fit import Measured, fit
from runner.doctor.machine import Machine
from runner.doctor.other import KIND, facts_of, gloo_address
from runner.doctor.reach import Door, Way, try_door
from runner.doctor.sweep import BUDGET, WHOLE_LIMIT, Outcome, Rank, seat
from runner.errors import RunnerError
from runner.launch.network import listen
from runner.launch.peer import Peer

HELLO_WITHIN = 5.0  # seconds in which who connects must say who it is
ANSWER_WITHIN = 30.0
PINGS = 15


class First:
    """The talk with the other nodes. Raises RunnerError where this machine cannot listen at `address`."""

    def __init__(self, machine: Machine, address: str, port: int, nodes: int):
        self._machine, self._nodes, self.address = machine, nodes, address
        self._peers: dict[int, Peer] = {}
        self.facts: dict[int, dict[str, Any]] = {0: facts_of(0, machine, address)}
        self._apart = False
        self._listener = listen(address, port)

    def gather(self, seconds: float) -> Iterator[Finding]:
        """Wait for all nodes. What is found is about those that do not come, or do not fit."""
        deadline = time.monotonic() + seconds
        while len(self._peers) < self._nodes - 1 and (left := deadline - time.monotonic()) > 0:
            self._listener.settimeout(min(left, 1.0))
            try:
                connected, seen = self._listener.accept()
            except TimeoutError:
                continue
            yield from self._welcome(connected, seen[0])
        for number in range(1, self._nodes):
            if number not in self._peers:
                yield judging.absent(number, self.address, self._listener.getsockname()[1], seconds)

    def examine(self) -> Iterator[Finding]:
        """What keeps the nodes that are here from working together."""
        for number in sorted(self._peers):
            yield from judging.versions(self.facts[0], self.facts[number], number)
            yield from judging.clocks(number, *self._offset(number))
        yield from judging.interfaces(self.facts)
        yield from self._ways()

    @property
    def apart(self) -> bool:
        """Whether some node cannot connect to some other, as `examine` has found."""
        return self._apart

    def sweep(self) -> tuple[Measured | None, list[Finding]]:
        """All-reduces between all nodes, one rank on each."""
        outcome = self._swept()
        if outcome.error is not None:
            return None, [judging.sweep_failed(outcome)]
        try:
            return fit(self._nodes, outcome.points), []
        except RunnerError as error:
            return None, [judging.sweep_short(str(error))]

    def close(self, findings: Sequence[Finding]) -> None:
        """Tell the others what was found; what a node has said of itself it knows."""
        for number, peer in self._peers.items():
            new = [f.as_json() for f in findings if not f.what.startswith(f"on node {number} (")]
            peer.tell("bye", findings=new)
            peer.close()
        self._listener.close()

    def _welcome(self, connected: socket.socket, seen: str) -> Iterator[Finding]:
        peer = Peer(connected, "a node that has not said who it is")
        hello = peer.expect(HELLO_WITHIN)
        if hello is None or hello.get("kind") != KIND:
            peer.tell("refused", why="a doctor waits here, not a run: type `doctor` there, too")
            peer.close()
            return
        try:
            number, peer.name = int(hello["rank"]), f"node {hello['rank']}, {hello['host']}"
            own, found = str(hello["on_the_way"]), [Finding(**f) for f in hello["findings"]]
            if missing := {"address", "variable", "interface"} - set(hello):
                raise KeyError(*missing)
        except (KeyError, TypeError, ValueError):
            peer.tell("refused", why="it does not say what this doctor asks for: install the same on all nodes")
            peer.close()
            yield Finding(
                f"a node at {seen} has another doctor than this one", "Install the same samestep on all nodes"
            )
            return
        if not 0 < number < self._nodes or number in self._peers:
            taken = number in self._peers
            why = f"node.rank={number} is {'taken' if taken else f'none of 1 to {self._nodes - 1}'}"
            peer.tell("refused", why=why)
            peer.close()
            yield Finding(f"{peer.name} was sent away: {why}", "Give every node a rank of its own")
            return
        self._peers[number], self.facts[number] = peer, hello
        for said in found:
            yield replace(said, what=f"on node {number} ({hello['host']}), {said.what}")
        if own != seen:
            yield judging.translated(number, own, seen)

    def _ask(self, number: int, kind: str, within: float = ANSWER_WITHIN, **facts: Any) -> dict[str, Any]:
        """A node's answer. Raises RunnerError if none comes."""
        peer = self._peers[number]
        peer.tell(kind, **facts)
        answer = peer.expect(within)
        if answer is None:
            raise RunnerError(f"{peer.name} does not answer: {peer.lost or 'nothing was heard'}")
        return answer

    def _offset(self, number: int) -> tuple[float, float]:
        """How far a node's clock is ahead of this one's, and how far off that may be: half of the shortest round trip."""
        best = (float("inf"), 0.0)
        for _ in range(PINGS):
            start, clock = time.perf_counter(), time.time()
            theirs = self._ask(number, "clock")["time"]
            trip = time.perf_counter() - start
            best = min(best, (trip, theirs - (clock + trip / 2)))
        return best[1], best[0] / 2

    def _ways(self) -> Iterator[Finding]:
        """Every node connects to every other at a port that is open there."""
        doors = {n: self._open(n) for n in self.facts}
        for number, door in doors.items():
            if isinstance(door, str):
                self._apart = True
                yield judging.no_door(number, self.facts[number], door)
        for source, target in itertools.permutations(self.facts, 2):
            door = doors[target]
            if not isinstance(door, str):
                way = self._reach(source, door)
                if way.how != "open":
                    self._apart = True
                    yield judging.no_way(source, target, self.facts, door, way)

    def _open(self, number: int) -> dict[str, Any] | str:
        """A door of a node at the address that gloo takes there; the error where it cannot be opened."""
        address = self.facts[number]["address"]
        if number:
            answer = self._ask(number, "door", address=address)
            return str(answer["error"]) if "error" in answer else answer
        try:
            return Door(address).as_json()
        except OSError as error:
            return error.strerror or str(error)

    def _reach(self, source: int, door: dict[str, Any]) -> Way:
        where = {name: door[name] for name in ("address", "port", "word")}
        if not source:
            return try_door(**where)
        answer = self._ask(source, "reach", **where)
        return Way(answer["how"], answer["detail"])

    def _swept(self) -> Outcome:
        size = self._nodes
        listener = listen(self.address)
        port = listener.getsockname()[1]
        for peer in self._peers.values():
            peer.tell("sweep_with", size=size, address=self.address, port=port, budget=BUDGET)
        rank = Rank(seat(0, size, self.address, port, gloo_address(self.address)[1], listener))
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + WHOLE_LIMIT + 10
        try:
            while (rank.hear() or len(answers) < len(self._peers)) and time.monotonic() < deadline:
                lines = [p.connection for n, p in self._peers.items() if n not in answers and not p.lost]
                wait([rank.report, *lines] if not rank.outcome.done else lines, timeout=1.0)
                for number, peer in self._peers.items():
                    for message in peer.hear():
                        answers[number] = message
                if any(peer.lost for peer in self._peers.values()):
                    break
        finally:
            rank.end()
        outcome = rank.outcome
        for number, peer in self._peers.items():
            error = answers.get(number, {}).get("error") or (peer.lost and f"{peer.name}: {peer.lost}")
            if error and outcome.error is None:
                outcome.error = error
        return outcome
