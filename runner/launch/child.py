"""What runs first in a rank: its output, its signals, its watch over the parent; then the worker."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.link import spaces
from runner.rundir import RunFolder

if TYPE_CHECKING:
    from runner.world import Seat

FAILED = 1
ORPHANED = 3


def main(folder: str, rank: int, seat: dict[str, Any], environment: dict[str, str], report: Connection) -> None:
    """Run a rank. Its error, if any, goes to the parent as JSON through `report`; its output into the run's folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches every process of the terminal; the parent decides
    leave_when_told()
    _enter(rank, seat, report)  # before the first thread, which could not follow
    run = RunFolder(Path(folder))
    threading.Thread(target=_follow_parent, args=(run, rank), daemon=True).start()
    _redirect(run.log(rank))
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    try:
        _work(run, seat)
        report.send_bytes(json.dumps({"done": True}).encode())
    except _Told:
        raise SystemExit(128 + signal.SIGTERM) from None
    except BaseException as error:
        report.send_bytes(json.dumps(_describe(rank, error)).encode())
        sys.stderr.flush()
        for process in multiprocessing.active_children():  # loaders, which would hold on for seconds
            process.kill()
        os._exit(FAILED)  # no tidy end: the process group may wait for a peer that is gone


def _enter(rank: int, seat: dict[str, Any], report: Connection) -> None:
    """Go to the node that this rank belongs to, where there are several on this machine."""
    try:
        spaces.enter(seat.pop("spaces"), seat.pop("cores"))
    except OSError as error:
        error.add_note("on its way into the network namespace of its node")
        report.send_bytes(json.dumps(_describe(rank, error)).encode())
        os._exit(FAILED)


def _work(run: RunFolder, seat: dict[str, Any]) -> None:
    from runner import worker
    from runner.world import Seat

    made: Seat = Seat(**seat)
    worker.main(run, made)


def _describe(rank: int, error: BaseException) -> dict[str, Any]:
    from runner.errors import NonFiniteError, RunnerError

    text = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
    notes = getattr(error, "__notes__", [])
    agreed = isinstance(error, NonFiniteError)  # all ranks raise it, and it says itself where it was
    return {
        "rank": error.rank if isinstance(error, NonFiniteError) else rank,
        "agreed": agreed,
        "type": type(error).__name__,
        "message": " ".join([text, *(f"({n})" for n in notes)]),
        "trace": "" if isinstance(error, RunnerError) else "".join(traceback.format_exception(error)),
        "consequence": _is_consequence(error),
        "time": time.time(),
    }


def _is_consequence(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone."""
    text = str(error)
    return type(error).__name__.startswith("Dist") or any(
        sign in text
        for sign in (
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "Timed out waiting",
            "gloo/",
        )
    )


def _redirect(log: Path) -> None:
    """Everything that this process writes to its terminal goes into its log."""
    log.parent.mkdir(exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(fd, stream.fileno())
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


class _Told(BaseException):
    """The parent says that it is time to go."""


def leave_when_told() -> None:
    """From now on SIGTERM raises `_Told`, in the main thread. Where that is lost, as in the callback of a weak reference or
    in a `__del__`, it is raised again."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGALRM, _leave)
    sys.unraisablehook = _unraised


def _leave(_number: int, _frame: object) -> None:
    raise _Told


def _unraised(lost: sys.UnraisableHookArgs) -> None:
    if issubclass(lost.exc_type, _Told):
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # once this hook, in which it would be lost as well, is left
    else:
        sys.__unraisablehook__(lost)


def _follow_parent(run: RunFolder, rank: int) -> None:
    """End with the parent, however it ended: a rank left alone would train on for ever. The parent says in the
    folder how a run ended, so if it still says `running` it can only have been killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    if rank == 0:
        with contextlib.suppress(Exception):
            if run.read_status()["state"] == "running":
                run.write_status("interrupted", reason="the process that started the run is gone", finished=time.time())
    os._exit(ORPHANED)
