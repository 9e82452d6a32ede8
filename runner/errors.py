"""What can go wrong, as exceptions that say what, where, and what to do about it.

RunnerError
|-- ConfigError        the configuration cannot be run; holds every Problem that was found (exit 2)
|-- TaskError          a task breaks its contract: what it returned, and what is expected
|-- NonFiniteError     a loss or a gradient is no longer a number: rank, update, micro-batch
|-- TrackerError       a tracker cannot be started
|-- LinkError          nodes on one machine, joined by a link, cannot be made
|-- WorkerFailed       a rank ended early: its rank and its own error
`-- RecordError        a run's folder cannot be read, or already holds another run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


class RunnerError(Exception):
    """The base of everything that Samestep raises on purpose. `str()` is what a user should read."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    `key` is the dotted key at fault, `what` says what is wrong with the value found there, and `fix`
    what to type instead (may be empty). `unless` names keys: where one of them is at fault, this is no problem of its own.
    """

    key: str
    what: str
    fix: str = ""
    unless: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = f"{self.key}: {self.what}" if self.key else self.what
        line = f"{line}. {self.fix}" if self.fix else line
        return "".join(
            c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in line
        )  # one line, whatever was typed


class ConfigError(RunnerError):
    """A configuration that cannot be run, with all its problems, one line each."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(str(p) for p in self.problems))


def check_all(*checks: Callable[[], object]) -> None:
    """Make every check. Raises ConfigError with the problems of all that raise one."""
    problems: list[Problem] = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


class TaskError(RunnerError):
    """A task does not do what `runner.task.Task` asks of it."""


class NonFiniteError(RunnerError):
    """A loss or gradient is NaN or infinite and the policy is `nonfinite=stop`. Raised on all ranks; `rank` is the
    first one whose own loss it was, None where only the summed gradient is not finite."""

    def __init__(self, message: str, rank: int | None = None):
        self.rank = rank
        super().__init__(message)


class TrackerError(RunnerError):
    """A tracker that was asked for cannot be started: no login, no network, no place to write to."""


class LinkError(RunnerError):
    """Nodes on this machine, joined by a link, cannot be made here."""


class WorkerFailed(RunnerError):
    """A rank of a run ended early. `rank` is None where it is not known which one was the first."""

    def __init__(self, message: str, rank: int | None = None, trace: str = ""):
        self.rank = rank
        self.trace = trace
        super().__init__(message)


class RecordError(RunnerError):
    """A run's folder is unreadable, incomplete, or taken by another run."""
