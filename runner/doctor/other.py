"""A node that is not the first: says what it has, and answers the first one's questions until that says goodbye."""

from __future__ import annotations

import os
import socket
import time
from multiprocessing.connection import wait
from typing import Any

from runner.doctor.checks import check
from runner.doctor.findings import Finding
from runner.doctor.machine import Machine
from runner.doctor.reach import Door, try_door
from runner.doctor.sweep import Rank, seat
from runner.errors import RunnerError
from runner.launch.introduction import introduction
from runner.launch.network import addresses, interface_of
from runner.launch.peer import Peer

PATIENCE = 90.0  # seconds of silence from the first node that are put up with
KIND = "doctor"  # what a doctor's first message is called: a run's is another


def own_address(connected: Peer) -> str:
    """This machine's address on the way to the other end."""
    with socket.socket(fileno=os.dup(connected.connection.fileno())) as same:
        return str(same.getsockname()[0])


def gloo_address(on_the_way: str) -> tuple[str, str | None]:
    """The address and interface that gloo would take here: those on the way to the other nodes, unless a variable says
    otherwise. The address stays the one on the way where the variable names nothing that is there."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named:
        return dict(addresses()).get(named, on_the_way), named
    return on_the_way, interface_of(on_the_way)


def facts_of(rank: int, machine: Machine, on_the_way: str) -> dict[str, Any]:
    """What a node says of itself."""
    address, interface = gloo_address(on_the_way)
    mine = {
        "build": machine.torch_build,
        "on_the_way": on_the_way,
        "address": address,
        "interface": interface,
        "variable": os.environ.get("GLOO_SOCKET_IFNAME"),
        "findings": [f.as_json() for f in check(machine)],
        "machine": machine.as_json(),
    }
    return introduction(rank, []) | mine


class Answers:
    """This node's side of the talk."""

    def __init__(self, rank: int, first: Peer, machine: Machine):
        self._rank, self._first, self._machine = rank, first, machine
        self._doors: list[Door] = []
        self._sweep: Rank | None = None

    def serve(self) -> list[Finding]:
        """Until the first node says goodbye; returns what it has found. Raises RunnerError where it goes missing."""
        self._first.tell(KIND, **facts_of(self._rank, self._machine, own_address(self._first)))
        try:
            while (message := self._next()) is not None:
                kind = message["kind"]
                if kind == "refused":
                    raise RunnerError(f"refused by {self._first.name}: {message['why']}")
                if kind == "bye":
                    return [Finding(**f) for f in message["findings"]]
                answers = {
                    "clock": self._clock,
                    "door": self._door,
                    "reach": self._reach,
                    "sweep_with": self._sweep_with,
                }
                if kind not in answers:
                    raise RunnerError(
                        f"{self._first.name} asks for '{kind}', which is unknown here. Install the same on all nodes"
                    )
                self._first.tell("answer", **answers[kind](message))
        finally:
            for door in self._doors:
                door.close()
            if self._sweep:
                self._sweep.end()
        hint = "" if self._first.lost != "its command ended" else ". Is a doctor waiting there, with node.rank=0?"
        raise RunnerError(f"{self._first.name} went missing: {self._first.lost or 'nothing was heard'}{hint}")

    def _next(self) -> dict[str, Any] | None:
        return self._first.expect(PATIENCE)

    def _clock(self, _message: dict[str, Any]) -> dict[str, Any]:
        return {"time": time.time()}

    def _door(self, message: dict[str, Any]) -> dict[str, Any]:
        """Open a port at the address that gloo would take."""
        try:
            door = Door(message["address"])
        except OSError as error:
            return {"error": error.strerror or str(error)}
        self._doors.append(door)
        return door.as_json()

    def _reach(self, message: dict[str, Any]) -> dict[str, Any]:
        way = try_door(message["address"], message["port"], message["word"])
        return {"how": way.how, "detail": way.detail}

    def _sweep_with(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take part in a sweep, to its end."""
        _, interface = gloo_address(own_address(self._first))
        place = seat(self._rank, message["size"], message["address"], message["port"], interface, None)
        self._sweep = rank = Rank(place, message["budget"])
        while rank.hear() and self._first.lost is None:
            wait([rank.report], timeout=1.0)
        rank.end()
        return {"error": rank.outcome.error}
