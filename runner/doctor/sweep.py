"""A sweep of all-reduces, seen from outside: its ranks are started, listened to, and ended in any case."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from runner.launch.network import LOOPBACK, interface_of, listen
from runner.launch.warm import CONTEXT, warm_up

SIZES = tuple(4**n for n in range(1, 14))  # 4 bytes to 64 MiB
BUDGET = 10.0  # seconds for all sizes
MOST_REPEATS = 20
CONNECT_LIMIT = 20.0  # seconds for ranks to find each other
WHOLE_LIMIT = 60.0  # seconds after which a sweep is ended: loading torch, connecting, measuring, and some more
FRAME = 1400  # bytes: what fits into one packet


@dataclass(slots=True)
class Outcome:
    """What a rank told: its sizes and seconds, and what went wrong (None: nothing)."""

    points: list[tuple[int, float]] = field(default_factory=list)
    error: str | None = None
    done: bool = False


class Rank:
    """One rank of a sweep, from its start to its end."""

    def __init__(self, seat: dict[str, Any], budget: float = BUDGET):
        warm_up()
        self.outcome = Outcome()
        self._deadline = time.monotonic() + WHOLE_LIMIT
        self.report, theirs = CONTEXT.Pipe(duplex=False)
        arguments = (seat, budget, dict(os.environ), theirs)
        self._process: BaseProcess = CONTEXT.Process(target=_main, args=arguments, name=f"doctor-rank-{seat['rank']}")
        self._process.start()
        theirs.close()
        if seat["listener"] is not None:
            seat["listener"].close()

    def hear(self) -> bool:
        """Take what it has told. False once there is no more to come."""
        while self.outcome.error is None and not self.outcome.done:
            try:
                if not self.report.poll():
                    if time.monotonic() > self._deadline:
                        self.outcome.error = f"it took more than {WHOLE_LIMIT:g} s"
                    break
                told = json.loads(self.report.recv_bytes())
            except (EOFError, OSError):
                self.outcome.error = "its process was ended"
                break
            if "error" in told:
                self.outcome.error = told["error"]
            elif "size" in told:
                self.outcome.points.append((told["size"], told["seconds"]))
            else:
                self.outcome.done = True
        return self.outcome.error is None and not self.outcome.done

    def end(self) -> None:
        """Nothing of it is left when this returns."""
        if self.outcome.done:
            self._process.join(5)
        self._process.kill()
        self._process.join()
        self.report.close()


def seat(rank: int, size: int, address: str, port: int, interface: str | None, listener: Any) -> dict[str, Any]:
    """A place in the sweep: one rank a node, or both on this one."""
    return {
        "rank": rank,
        "size": size,
        "local_rank": 0,
        "threads": 1,
        "address": address,
        "port": port,
        "interface": interface,
        "listener": listener,
    }


def locally(processes: int = 2, budget: float = BUDGET) -> Outcome:
    """A sweep between processes of this machine; what its first rank told."""
    listener = listen(LOOPBACK)
    port, interface = listener.getsockname()[1], interface_of(LOOPBACK)
    ranks: list[Rank] = []
    try:
        for number in range(processes):
            place = seat(number, processes, LOOPBACK, port, interface, listener if number == 0 else None)
            ranks.append(Rank(place, budget))
        return together(ranks)
    finally:
        for rank in ranks:
            rank.end()


def together(ranks: Sequence[Rank]) -> Outcome:
    """What the first of several ranks told, with the first error of any."""
    while True:
        heard = [rank.hear() for rank in ranks]
        failed = next((r.outcome for r in ranks if r.outcome.error), None)
        if failed is not None or not any(heard):
            first = ranks[0].outcome
            return Outcome(first.points, failed.error if failed else None, first.done)
        wait([rank.report for rank, more in zip(ranks, heard, strict=True) if more], timeout=1.0)


def _main(seat: dict[str, Any], budget: float, environment: dict[str, str], report: Connection) -> None:
    """Runs in the rank's own process, which ends with the one that started it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries grumble while a peer leaves; errors are told

    def tell(**facts: Any) -> None:
        report.send_bytes(json.dumps(facts).encode())

    try:
        from runner.doctor.measuring import measure

        measure(seat, budget, lambda size, seconds: tell(size=size, seconds=seconds))
        tell(done=True)
    except BaseException as error:
        tell(error=" ".join(str(error).split()) or type(error).__name__)
        os._exit(1)  # no tidy end: the group may wait for a peer that is gone
