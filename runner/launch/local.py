"""A run on this machine alone: start its ranks, watch them to their end."""

from __future__ import annotations

import time
from multiprocessing.connection import wait

from runner.errors import WorkerFailed
from runner.launch.ending import undisturbed
from runner.launch.fault import failure, waited
from runner.launch.progress import Progress, Silent
from runner.launch.ranks import GRACE, Ranks, alone
from runner.link.emulated import joined
from runner.plan import Plan
from runner.rundir import RunFolder


def launch(plan: Plan, folder: RunFolder, progress: Progress | Silent) -> None:
    """Run all ranks of a plan to their end. Raises WorkerFailed with the first rank's own error.

    On the way out, however it comes, no rank is left.
    """
    with joined(plan, folder) as emulated:
        ranks = Ranks(alone(plan, emulated))
        try:
            ranks.start(plan, folder)
            _watch(ranks, progress)
        finally:
            with undisturbed():
                ranks.end()
            progress.finish()


def _watch(ranks: Ranks, progress: Progress | Silent) -> None:
    """Until all ranks have ended well. Raises WorkerFailed as soon as one has not."""
    while ranks.sentinels:
        if not ranks.ended_well(wait(ranks.sentinels, timeout=progress.interval)):
            raise _failure(ranks)
        progress.show()
    progress.show()


def _failure(ranks: Ranks) -> WorkerFailed:
    """The error to report: not of the rank that ended first, but of the one that did not end because of another."""
    deadline = time.monotonic() + GRACE
    while (left := deadline - time.monotonic()) > 0 and ranks.sentinels:
        if any(f.certain for f in ranks.faults()):
            break
        ranks.ended_well(wait(ranks.sentinels, timeout=left))
    faults = ranks.faults()
    if waited(faults):
        faults += ranks.silent()
    return failure(faults)
