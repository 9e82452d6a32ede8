"""The ranks on this machine: start them, hear what they report, and leave none behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from runner.launch import child
from runner.launch.fault import Fault, Kind
from runner.launch.hardware import cores_of, threads_of
from runner.launch.network import LOOPBACK, interface_of, listen
from runner.launch.warm import CONTEXT, bare, warm_up
from runner.link.emulated import EmulatedNodes
from runner.plan import Plan
from runner.rundir import RunFolder

GRACE = 3.0  # seconds that ranks get to end by themselves, after a failure or when they are told to


@dataclass(frozen=True, slots=True)
class Place:
    """Which of a run's `size` ranks this machine has, and where all of them meet.

    The first node has the store of the run at `address:port`; its rank 0 gets the listening socket itself.
    """

    first: int
    count: int
    size: int
    address: str = LOOPBACK  # of the first node
    port: int = 0
    interface: str | None = interface_of(LOOPBACK)
    listener: socket.socket | None = None
    name: str = ""  # of this node, where there are several
    emulated: EmulatedNodes | None = None  # the nodes that this machine is made into, with a link between them

    def who(self, rank: int) -> str:
        name = self.emulated.name_of(rank, self.size) if self.emulated else self.name
        return f"rank {rank} of {self.size}{f' ({name})' if name else ''}"


def alone(plan: Plan, emulated: EmulatedNodes | None = None) -> Place:
    """All ranks on this machine, perhaps on nodes that it is made into."""
    size = plan.arithmetic.processes
    if emulated:  # where rank 0 listens itself
        return Place(first=0, count=size, size=size, emulated=emulated)
    listener = listen(LOOPBACK) if size > 1 else None
    port = listener.getsockname()[1] if listener else 0
    return Place(first=0, count=size, size=size, port=port, listener=listener)


@dataclass(slots=True)
class _Rank:
    number: int
    process: BaseProcess
    report: Connection
    done: bool = False
    error: dict[str, Any] | None = None

    def hear(self) -> None:
        """Take what the rank has sent, if it has: that it is done, or its error."""
        with contextlib.suppress(EOFError, OSError):
            if not self.done and self.error is None and self.report.poll():
                told = json.loads(self.report.recv_bytes())
                self.done = "done" in told
                self.error = None if self.done else told


class Ranks:
    """The processes of one run on this machine."""

    def __init__(self, place: Place):
        self.place = place
        self._ranks: list[_Rank] = []
        self._running: dict[int, _Rank] = {}

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Fork all of them from the warm server."""
        warm_up()
        place, threads, environment = self.place, threads_of(plan), dict(os.environ)
        if place.emulated:
            environment["GLOO_SOCKET_IFNAME"] = (
                place.emulated.device
            )  # whatever leads out of this machine does not there
        try:
            for local in range(place.count):
                number = place.first + local
                theirs, ours = CONTEXT.Pipe(duplex=True)
                seat = {
                    "rank": number,
                    "size": place.size,
                    "local_rank": local,
                    "threads": threads,
                    "address": place.address,
                    "port": place.port,
                    "interface": place.interface,
                    "listener": place.listener if number == 0 else None,
                    "spaces": [],
                    "cores": cores_of(plan, number),
                }
                if place.emulated:
                    seat |= place.emulated.seat(number, place.size)
                process = CONTEXT.Process(
                    target=child.main,
                    args=(str(folder.path.absolute()), number, seat, environment, theirs),
                    name=f"samestep-rank-{number}",
                )
                with bare():
                    process.start()
                theirs.close()
                rank = _Rank(number, process, ours)
                self._ranks.append(rank)
                self._running[process.sentinel] = rank
        finally:
            if place.listener:
                place.listener.close()

    @property
    def sentinels(self) -> list[int]:
        """What becomes ready when a rank ends; of those that still run."""
        return list(self._running)

    def ended_well(self, ready: Iterable[object]) -> bool:
        """Take the ranks among `ready` that have ended. False if one of them was not done."""
        well = True
        for sentinel in ready:
            rank = self._running.pop(sentinel, None)  # type: ignore[call-overload]
            if rank is not None:
                rank.process.join()
                rank.hear()
                well = well and rank.process.exitcode == 0 and rank.done
        return well

    def faults(self) -> list[Fault]:
        """What is known by now of ranks that were not done. One that does not answer is a fault if others waited for
        it until their time was up."""
        for rank in self._ranks:
            rank.hear()
        found = [self._told(r) for r in self._ranks if r.error]
        for rank in self._ranks:
            code = rank.process.exitcode
            if rank.error is None and code is not None and (code or not rank.done):
                how = _how_it_ended(code)
                message = f"{self.place.who(rank.number)} ended: {how}"
                found.append(Fault(Kind.killed, message, rank.number, time=time.time()))
        return found

    def silent(self) -> list[Fault]:
        """The ranks that run and have said nothing: those that others waited for, where that is why they failed."""
        return [
            Fault(Kind.silent, f"{self.place.who(r.number)} does not answer: {_state_of(r.process)}", r.number)
            for r in self._ranks
            if r.error is None and not r.done and r.process.exitcode is None
        ]

    def end(self) -> None:
        """End every rank that still runs: ask, wait, then insist."""
        for rank in self._ranks:
            if rank.process.is_alive():
                rank.process.terminate()
        deadline = time.monotonic() + GRACE
        for rank in self._ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
            if rank.process.is_alive():
                rank.process.kill()
                rank.process.join()
            rank.report.close()
        self._running.clear()

    def _told(self, rank: _Rank) -> Fault:
        error = rank.error
        assert error is not None
        who = "" if error["agreed"] else f"{self.place.who(rank.number)} failed: "
        kind = Kind.consequence if error["consequence"] else Kind.own
        return Fault(kind, who + error["message"], error["rank"], error["trace"], error["time"])


def _state_of(process: BaseProcess) -> str:
    """What a process that should have reported is at, as far as the system tells."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    return "its process is stopped" if state in ("T", "t") else "the others waited for it until hardware.timeout"


def _how_it_ended(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the system kills processes that way when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"its process left with exit code {code} before training was done"
