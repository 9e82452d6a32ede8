"""Why a run broke off: of all that the ranks and nodes report, the one thing that did not follow from another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from runner.errors import WorkerFailed


class Kind(IntEnum):
    """The smaller, the nearer to the cause."""

    own = 0  # an error of the rank itself
    killed = 1  # its process ended without a word
    gone = 2  # a node that is no longer heard of
    silent = 3  # others waited for it in vain
    consequence = 4  # an error that only says that somebody else is gone


@dataclass(frozen=True, slots=True)
class Fault:
    """One rank's or one node's part in the end of a run. `message` names it."""

    kind: Kind
    message: str
    rank: int | None = None
    trace: str = ""
    time: float = 0.0

    @property
    def certain(self) -> bool:
        """Whether nothing that may still be reported comes nearer to the cause."""
        return self.kind is Kind.own


def failure(faults: Iterable[Fault]) -> WorkerFailed:
    """The error to report of all `faults`; of the same kind, the first one."""
    cause = min(faults, key=lambda f: (f.kind, f.time))
    return WorkerFailed(cause.message, cause.rank, cause.trace)


def waited(faults: Iterable[Fault]) -> bool:
    """Whether all that is known is that somebody was waited for in vain."""
    faults = list(faults)
    return all(f.kind is Kind.consequence for f in faults) and any("imed out" in f.message for f in faults)
