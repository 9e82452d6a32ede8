"""The ranks of a run on this machine: start them, watch them, and leave none behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from runner.errors import WorkerFailed
from runner.launch import child
from runner.launch.ending import undisturbed
from runner.launch.hardware import threads_of
from runner.launch.progress import Progress
from runner.launch.warm import CONTEXT, warm_up
from runner.plan import Plan
from runner.rundir import RunFolder

GRACE = 3.0  # seconds that ranks get to end by themselves, after a failure or when they are told to


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


def launch(plan: Plan, folder: RunFolder, progress: Progress) -> None:
    """Run all ranks of a plan to their end. Raises WorkerFailed with the first rank's own error.

    On the way out, however it comes, no rank is left.
    """
    ranks: list[_Rank] = []
    try:
        _start(plan, folder, ranks)
        _watch(ranks, progress)
    finally:
        with undisturbed():
            _end(ranks)
        progress.finish()


def _start(plan: Plan, folder: RunFolder, ranks: list[_Rank]) -> None:
    warm_up()
    size = plan.arithmetic.processes
    threads = threads_of(plan)
    environment = dict(os.environ)
    listener = _listen() if size > 1 else None
    port = listener.getsockname()[1] if listener else 0
    try:
        for number in range(size):
            theirs, ours = CONTEXT.Pipe(duplex=True)
            seat = {
                "rank": number,
                "size": size,
                "local_rank": number,
                "threads": threads,
                "port": port,
                "listener": listener if number == 0 else None,
            }
            process = CONTEXT.Process(
                target=child.main,
                args=(str(folder.path.absolute()), number, seat, environment, theirs),
                name=f"samestep-rank-{number}",
            )
            process.start()
            theirs.close()
            ranks.append(_Rank(number, process, ours))
    finally:
        if listener:
            listener.close()


def _listen() -> socket.socket:
    """A socket on a free port of this machine alone. Rank 0 inherits it, so nobody can take the port meanwhile."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def _watch(ranks: list[_Rank], progress: Progress) -> None:
    """Until all ranks have ended well. Raises WorkerFailed as soon as one has not."""
    running = {r.process.sentinel: r for r in ranks}
    while running:
        for sentinel in wait(list(running), timeout=progress.interval):
            rank = running.pop(sentinel)  # type: ignore[arg-type]
            rank.process.join()
            rank.hear()
            if rank.process.exitcode != 0 or not rank.done:
                raise _failure(ranks, rank)
        progress.show()
    progress.show()


def _failure(ranks: list[_Rank], first: _Rank) -> WorkerFailed:
    """The error to report: not of the rank that ended first, but of the one that did not end because of another."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and (alive := [r.process.sentinel for r in ranks if r.process.is_alive()]):
        wait(alive, timeout=deadline - time.monotonic())
        if any(r.error and not r.error["consequence"] for r in ranks):
            break
        for rank in ranks:
            rank.hear()
    for rank in ranks:
        rank.hear()
    killed = [r for r in ranks if r.error is None and not r.done and r.process.exitcode is not None]
    told = sorted((r for r in ranks if r.error), key=lambda r: (r.error["consequence"], r.error["time"]))  # type: ignore[index]
    if told and (not told[0].error["consequence"] or not killed):  # type: ignore[index]
        error = told[0].error
        assert error is not None
        who = "" if error["agreed"] else f"rank {error['rank']} of {len(ranks)} failed: "
        return WorkerFailed(who + error["message"], error["rank"], error["trace"])
    rank = killed[0] if killed else first
    return WorkerFailed(
        f"rank {rank.number} of {len(ranks)} ended: {_how_it_ended(rank.process.exitcode)}", rank.number
    )


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (the system kills processes that way when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"its process left with exit code {code} before training was done"


def _end(ranks: list[_Rank]) -> None:
    """End every rank that still runs: ask, wait, then insist."""
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.terminate()
    deadline = time.monotonic() + GRACE
    for rank in ranks:
        rank.process.join(max(0.0, deadline - time.monotonic()))
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.report.close()
