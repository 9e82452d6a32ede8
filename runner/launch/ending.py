"""How a run ends: signals become exceptions, and the folder's status says what happened, whatever it was."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.errors import RunnerError, WorkerFailed
from runner.rundir import RunFolder

_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Not an Exception, so that a sweep does not go on to its next job."""

    def __init__(self, number: int, why: str = ""):
        self.number = number
        super().__init__(", ".join(filter(None, [signal.Signals(number).name, why])))


@contextmanager
def recorded(create: Callable[[], RunFolder]) -> Iterator[RunFolder]:
    """A run from the making of its folder to its end; on the way out, however it comes, the status is written.

    Signals wait until the folder is there: from the moment that it says `running`, somebody must be there to
    say otherwise.
    """
    with signals_raised():
        arrived: list[int] = []
        with _handling(dict.fromkeys(_STOPPING, lambda number, _: arrived.append(number))):
            folder = create()
        try:
            for number in arrived:
                raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)
            yield folder
        except WorkerFailed as error:
            trace = error.trace or None
            _write(folder, "failed", reason=str(error), rank=error.rank, trace=trace)
            raise
        except (KeyboardInterrupt, Terminated) as error:
            _write(folder, "interrupted", reason=f"ended by {str(error) or 'SIGINT'}")
            raise
        except RunnerError as error:
            _write(folder, "failed", reason=str(error))
            raise
        except BaseException as error:
            _write(folder, "failed", reason=f"{type(error).__name__}: {error}")
            raise
        _write(folder, "finished")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Something short that must be done to its end: signals are ignored meanwhile."""
    with _handling(dict.fromkeys(_STOPPING, signal.SIG_IGN)):
        yield


def _write(folder: RunFolder, state: str, **facts: str | int | None) -> None:
    with undisturbed():
        try:
            folder.write_status(state, finished=time.time(), **facts)
        except OSError as error:  # what has happened must still be told
            print(f"cannot write {folder.status}: {error.strerror}; the run is {state}", file=sys.stderr)


@contextmanager
def signals_raised(first: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGTERM and SIGHUP as exceptions, as Ctrl-C is one; each after `first` was done to its end."""

    arrived: list[BaseException] = []

    def stop(number: int, _frame: object) -> None:
        with undisturbed():
            first()
        arrived.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated(number))
        raise arrived[-1]

    with _handling(dict.fromkeys(_STOPPING, stop)):
        try:
            yield
        except Exception:
            if arrived:  # and somebody's compiled code has made an error of its own of it
                raise arrived[-1] from None
            raise


@contextmanager
def _handling(handlers: dict[signal.Signals, object]) -> Iterator[None]:
    """Other signal handlers for a while. Outside the main thread, whose owner handles signals, nothing changes."""
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}  # type: ignore[arg-type]
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
