"""A rank that is told to go goes, wherever it happens to be."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOST = """
import os, signal, sys, time, weakref
from runner.launch import child

class Thing: pass

{how}
thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
try:
    del thing
    print("lost", flush=True)
    time.sleep(3)
    print("still here")
except child._Told:
    print("left")
"""


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("child.leave_when_told()", "left"),
        (
            "signal.signal(signal.SIGTERM, child._leave)",
            "still here",
        ),  # the control: python ignores what is raised there
    ],
)
def test_a_signal_in_the_callback_of_a_weak_reference_is_not_lost(how: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOST.format(how=how)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split("\n")[-2] == end
    assert ("Exception ignored" in done.stderr) == (end == "still here"), "nothing is printed of what is raised again"
