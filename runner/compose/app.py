"""Hydra's application: from a command line to checked jobs, one after another.

Everything is checked before Hydra starts: a wrong command line starts no process and makes no folder.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.compose import overrides
from runner.compose.arguments import CommandLine
from runner.compose.loading import loader, plain, plan_of, swept_by_recipe, values_of
from runner.compose.sources import data_folder, install
from runner.errors import ConfigError, Problem
from runner.plan import Plan
from runner.rundir import hindrance


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was composed: its plan, its folder, and the two files that record how it came about."""

    plan: Plan
    folder: Path
    config_yaml: str
    overrides_yaml: str
    overrides: tuple[str, ...]
    sweep: Path | None


JobFunction = Callable[[Job], float | None]
PlanCheck = Callable[[Plan], object]


def compose_one(line: CommandLine, plannable: PlanCheck = lambda _: None) -> Plan:
    """The plan of a command line. Raises ConfigError with every problem in it; `plannable` raises it for a plan."""
    install(line.config_folders)
    with loader(line.config_folders) as using:
        problems = overrides.find_problems(
            line.overrides, using, lambda o: values_of(o, using), lambda values: plannable(plan_of(values))
        )
        if problems:
            raise ConfigError(problems)
        return plan_of(values_of(line.overrides, using))


def check(line: CommandLine, runnable: PlanCheck) -> None:
    """Raises ConfigError with every problem of a command line, of all jobs that it asks for. `runnable` raises it for
    a plan that cannot run on this machine."""
    install(line.config_folders)
    with loader(line.config_folders) as using:
        problems = overrides.find_problems(
            [o for o in line.overrides if not o.startswith("hydra") and not overrides.is_sweep(o, using)],
            using,
            lambda o: values_of(o, using),
            lambda values: runnable(plan_of(values)),
        )
        swept = [o for o in line.overrides if overrides.is_sweep(o, using)]
        problems += [p for o in swept for p in overrides.problems_of(o, using)]
        if not problems or line.multirun:
            problems = _sweep_problems(line, using, runnable, problems)
        problems += _folder_problems(line, using)
        if problems:
            raise ConfigError(problems)


def run(line: CommandLine, job: JobFunction) -> None:
    """Run Hydra's application on a command line that was checked; `job` is called for every job that it asks for.

    Raises SystemExit where Hydra ends the process: after --help, say, or when a job failed.
    """
    install(line.config_folders)
    started = False

    def entry(config: DictConfig) -> float | None:
        nonlocal started
        started = True
        return job(_job(config))

    logging.getLogger("hydra._internal.core_plugins.basic_launcher").setLevel(logging.WARNING)  # jobs name themselves
    typed = sys.argv
    sys.argv = [typed[0], *line.flags, *overrides.prepare(line.overrides)]
    try:
        hydra.main(config_path=str(data_folder("conf")), config_name="config", version_base="1.3")(entry)()
    except SystemExit as ended:
        if ended.code == 1 and not started:  # Hydra has said what is wrong with the configuration
            raise SystemExit(ConfigError.exit_code) from None
        raise
    finally:
        sys.argv = typed


def _folder_problems(line: CommandLine, using: ConfigLoader) -> list[Problem]:
    """The folder of the run, or of the sweep, must be one that can be made and written to."""
    own = [o for o in line.overrides if o.lstrip("+").startswith(("hydra.", "recipe=")) and "," not in o]
    try:
        mode = RunMode.MULTIRUN if line.multirun else RunMode.RUN
        config = using.load_configuration("config", overrides.prepare(own), run_mode=mode)
        key = "hydra.run.dir" if config.hydra.mode in (None, RunMode.RUN) and not line.multirun else "hydra.sweep.dir"
        folder = str(OmegaConf.select(config, key))
    except (HydraException, OmegaConfBaseException):  # told elsewhere, or filled in by Hydra for each job
        return []
    why = hindrance(Path(folder))
    return [] if why is None else [Problem(key, f"nothing can be written to {folder}: {why}", f"Set {key}=FOLDER")]


def _sweep_problems(
    line: CommandLine, using: ConfigLoader, runnable: PlanCheck, before: list[Problem]
) -> list[Problem]:
    """The problems of a sweep's jobs; `before` are those that its common part has by itself, if it is no sweep."""
    single = [o for o in line.overrides if not overrides.is_sweep(o, using)]
    try:
        swept = swept_by_recipe(single, using)
        if swept is None and not line.multirun:
            return before + [overrides.not_swept(o) for o in line.overrides if o not in single]
        jobs = overrides.jobs_of(overrides.prepare(line.overrides), swept or {}, using)
    except Exception:  # Hydra's parser has several; the overrides that it stumbles over are in `before`
        if before:
            return before
        raise
    found: dict[Problem, list[str]] = {}
    for job in jobs:
        try:
            runnable(plan_of(values_of(job, using)))
        except ConfigError as error:
            name = " ".join(o.lstrip("+") for o in job if not o.startswith("hydra."))
            for problem in error.problems:
                found.setdefault(problem, []).append(name)
    return [Problem(p.key, f"{p.what} (in the job {_first_of(names)})", p.fix) for p, names in found.items()]


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _job(config: DictConfig) -> Job:
    values = plain(config)
    settings = HydraConfig.get()
    given = [o.removeprefix("++") for o in settings.overrides.task]
    return Job(
        plan=plan_of(values),
        folder=Path(settings.runtime.output_dir),
        config_yaml=OmegaConf.to_yaml(OmegaConf.create(values)),
        overrides_yaml=OmegaConf.to_yaml(OmegaConf.create(given)),
        overrides=tuple(given),
        sweep=Path(settings.sweep.dir).absolute() if settings.mode is RunMode.MULTIRUN else None,
    )
