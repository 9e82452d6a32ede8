"""What a launcher gives back of jobs that it ran elsewhere: what the sweeper sees of it, and what the command is told."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from runner.compose.entry import Asked, Entry, Failed
from runner.errors import RecordError


class Command:
    """Takes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Asked] = []

    def came_back(self, jobs: list[Asked]) -> None:
        self.told += jobs


def returned(value: Any, status: JobStatus = JobStatus.COMPLETED) -> JobReturn:
    return JobReturn(overrides=["seed=1"], status=status, _return_value=value)


def test_every_job_that_was_asked_for_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    command: Any = Command()
    jobs = {n: (f"++seed={n}", "accum=2") for n in range(3, 8)}
    returns = [
        returned(0.5),
        returned(Failed("no place")),
        returned(RecordError("no folder"), JobStatus.FAILED),
        returned(PermissionError(13, "Permission denied"), JobStatus.FAILED),
    ]
    Entry(command, ()).came_back(jobs, returns)
    assert [job.number for job in command.told] == [3, 4, 5, 6, 7]
    assert command.told[0].overrides == ("seed=3", "accum=2")
    assert [job.reason for job in command.told] == [
        None,
        "no place",
        "no folder",
        "PermissionError: [Errno 13] Permission denied",
        None,
    ]
    assert [r.return_value for r in returns] == [0.5, None, None, None], "a sweeper goes on"
    assert capsys.readouterr().err == ""


def test_a_mistake_in_a_job_is_still_raised() -> None:
    command: Any = Command()
    back = returned(ZeroDivisionError("of ours"), JobStatus.FAILED)
    Entry(command, ()).came_back({0: ("seed=0",)}, [back])
    assert command.told[0].reason == "ZeroDivisionError: of ours"
    with pytest.raises(ZeroDivisionError):
        _ = back.return_value


def test_where_a_launcher_gave_up_all_of_its_jobs_are_told_of() -> None:
    command: Any = Command()
    Entry(command, ()).came_back({0: ("seed=0",), 1: ("seed=1",)}, ())
    assert [(job.number, job.reason) for job in command.told] == [(0, None), (1, None)]
