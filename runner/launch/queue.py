"""Slurm jobs seen from who submitted them: how they are, and that they end with him."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence

# Reads job numbers until its end of the pipe closes. Without a goodbye before, whoever wrote them was killed.
_GUARD = 'ids=; while read -r id; do [ "$id" = bye ] && exit 0; ids="$ids $id"; done; exec scancel $ids'
_OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED")  # fmt: skip
_UNFIT = ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")  # fmt: skip
GONE = "gone"
ON_PURPOSE = (
    "CANCELLED",
    "PREEMPTED",
    "TIMEOUT",
    "DEADLINE",
    "REVOKED",
)  # by somebody, or by a limit that somebody set
ENDED_BY_SLURM = (*ON_PURPOSE, "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


class Guard:
    """A process of its own that cancels jobs when this one is gone without a goodbye, SIGKILL included."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is not for it
            text=True,
        )

    def watch(self, jobs: Iterable[str]) -> None:
        self._tell(jobs)

    def dismiss(self) -> None:
        self._tell(["bye"])
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, words: Iterable[str]) -> None:
        assert self._process.stdin is not None
        for word in words:
            print(word, file=self._process.stdin, flush=True)


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs; those that are over do not mind."""
    if jobs and shutil.which("scancel"):
        subprocess.run(["scancel", *jobs], capture_output=True, timeout=60, check=False)


def states(jobs: Sequence[str]) -> dict[str, str] | None:
    """Slurm's word for each job, with the reason of one that waits; GONE for one that it does not know (any more). None if
    Slurm does not answer."""
    asked = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}", "--format=%i|%T|%r"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return None
    found = {}
    for line in done.stdout.splitlines():
        name, state, reason = ([*line.strip().split("|"), "", ""])[:3]
        found[name] = f"{state} ({reason})" if state == "PENDING" else state
    return {job: found.get(job, GONE) for job in jobs}


def over(state: str) -> bool:
    """Whether a job in this state will do nothing more."""
    return state == GONE or state.startswith(_OVER)


def in_vain(state: str) -> bool:
    """Whether a job waits for what the cluster, as it is, will not give it. Slurm may be set up to queue such jobs."""
    return any(f"({reason})" in state for reason in _UNFIT)
