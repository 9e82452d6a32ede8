"""What Hydra calls for every job of a command, in this process or, where a launcher has carried it there, in another."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.compose.loading import plain, plan_of
from runner.compose.sources import install
from runner.errors import RunnerError
from runner.plan import Plan


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was composed: its plan, its folder, and the two files that record how it came about."""

    plan: Plan
    folder: Path
    config_yaml: str
    overrides_yaml: str
    overrides: tuple[str, ...]
    sweep: Path | None
    number: int = 0  # in its sweep


@dataclass(frozen=True, slots=True)
class Failed:
    """What a job that ran elsewhere gives in place of a value. Its folder may not say why: it may have had none to write to."""

    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that a launcher was handed; why it failed, where it came back to say so."""

    number: int
    overrides: tuple[str, ...]
    reason: str | None = None


class JobFunction(Protocol):
    """Runs jobs: one, or several together. A job's value is what a sweeper minimizes; None if it failed. Of jobs that a
    launcher ran elsewhere it is told afterwards."""

    def __call__(self, job: Job) -> float | Failed | None: ...

    def together(self, jobs: Sequence[Job]) -> list[float | None]: ...

    def came_back(self, jobs: Sequence[Asked]) -> None: ...


class Entry:
    """The task function of Hydra's application."""

    def __init__(self, job: JobFunction, config_folders: tuple[Path, ...], named: str | None = None):
        """`named` is how a job's folder is called in its sweep, not resolved; it is known once there is one."""
        self.started = False
        self.named = named
        self._job, self._config_folders = job, config_folders
        self._collected: list[Job] = []

    def __call__(self, config: DictConfig) -> float | Failed | None:
        self.started = True
        return self._job(_job(config, self.named))

    def collect(self, config: DictConfig) -> None:
        """Compose a job, for `together`."""
        self.started = True
        self._collected.append(_job(config, self.named))

    def together(self) -> list[float | None]:
        """Run what was collected."""
        jobs, self._collected = self._collected, []
        return self._job.together(jobs)

    def came_back(self, jobs: Mapping[int, Sequence[str]], returns: Sequence[JobReturn]) -> None:
        """A launcher is through with jobs, by their numbers. `returns` is what it gives back: nothing where it gave up."""
        reasons = dict(zip(jobs, map(_why, returns), strict=False))
        self._job.came_back([Asked(n, _given(overrides), reasons.get(n)) for n, overrides in jobs.items()])

    def __reduce__(self) -> Any:
        return _restore, (self._job, self._config_folders, self.named, Path.cwd(), list(sys.path))


def _restore(
    job: JobFunction, config_folders: tuple[Path, ...], named: str | None, cwd: Path, path: list[str]
) -> Entry:
    """In another process: what this one has set up, before Hydra looks at the job's configuration."""
    os.chdir(cwd)
    sys.path[:0] = [p for p in path if p not in sys.path]
    install(config_folders)
    return Entry(job, config_folders, named)


def _why(back: JobReturn) -> str | None:
    """Why a job that came back has failed, if it has; to the sweeper it then is one without a value."""
    try:
        with redirect_stderr(io.StringIO()):  # Hydra says there what it raises
            value = back.return_value
    except (RunnerError, OSError) as error:  # anything else is a mistake of ours, for the sweeper to raise
        value = Failed(str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not isinstance(value, Failed):
        return None
    back.status, back.return_value = JobStatus.COMPLETED, None
    return value.reason


def _given(overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides as they are shown."""
    return tuple(o.removeprefix("++") for o in overrides)


def _job(config: DictConfig, named: str | None) -> Job:
    settings: Any = HydraConfig.get()
    if named is not None:  # Hydra was told another name, see `Announce`
        with read_write(settings), open_dict(settings):
            settings.sweep.subdir = named
            settings.runtime.output_dir = str(Path(settings.sweep.dir, str(settings.sweep.subdir)).absolute())
    values = plain(config)
    given = _given(settings.overrides.task)
    swept = settings.mode is RunMode.MULTIRUN
    return Job(
        plan=plan_of(values),
        folder=Path(settings.runtime.output_dir),
        config_yaml=OmegaConf.to_yaml(OmegaConf.create(values)),
        overrides_yaml=OmegaConf.to_yaml(OmegaConf.create(list(given))),
        overrides=given,
        sweep=Path(settings.sweep.dir).absolute() if swept else None,
        number=settings.job.num if swept else 0,
    )
