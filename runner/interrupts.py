"""Ctrl-C while modules are loaded: the command leaves at once.

Python's own way raises an exception wherever it happens to be. Inside of an import that shows a traceback of somebody
else's code, or is lost in a callback, and the command goes on. As long as nothing was started and nothing written there is
nothing to clean up, so nothing has to be raised.
"""

from __future__ import annotations

import os
import signal


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process. Nothing changes where it is ignored, or somebody else handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt: there are processes or files that must be looked after."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: object) -> None:
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(130)
