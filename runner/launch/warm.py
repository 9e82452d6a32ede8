"""The fork server: one process that has loaded torch, from which every rank is forked in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from types import ModuleType

from runner.launch.ending import undisturbed

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")

# Read when torch is loaded, so set for the server; each rank then sets the number of threads that its plan asks for.
# Threads that wait sleep: spinning, as is the default, makes a batch up to ten times slower where other work runs.
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def warm_up() -> None:
    """Start the server, which loads torch while this process goes on. Does nothing if it runs already."""
    CONTEXT.set_forkserver_preload(["runner.launch.preload"])
    mine = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update({name: value for name, value in _THREADS.items() if mine[name] is None})
    try:
        with undisturbed():  # inherited by the server: a Ctrl-C is for this process to handle
            forkserver.ensure_running()
    finally:
        for name, value in mine.items():
            if value is None:
                del os.environ[name]


@contextmanager
def bare() -> Iterator[None]:
    """While ranks are started: they do not load the program that this process runs, and start children as the standard
    library does. In a worker of joblib, Ray or submitit that program is theirs, heavy, and not meant for it."""
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = ModuleType("__main__")
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        multiprocessing.set_start_method(method, force=True)
