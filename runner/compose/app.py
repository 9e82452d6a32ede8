"""Hydra's application: from a command line to checked jobs, one after another.

Everything is checked before Hydra starts: a wrong command line starts no process and makes no folder.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.compose import overrides
from runner.compose.arguments import CommandLine
from runner.compose.entry import Entry, JobFunction
from runner.compose.folders import folder_problems
from runner.compose.loading import loader, plan_of, sweep_of, values_of
from runner.compose.sources import data_folder, install
from runner.compose.sweeps import (
    ANNOUNCE,
    TOGETHER,
    announcing,
    as_swept,
    jobs_of,
    launcher_problem,
    plugin_errors,
)
from runner.errors import ConfigError, Problem, RunnerError, check_all
from runner.plan import Plan

PlanCheck = Callable[[Plan], object]


def compose_one(line: CommandLine, plannable: PlanCheck = lambda _: None) -> Plan:
    """The plan of a command line. Raises ConfigError with every problem in it; `plannable` raises it for a plan."""
    install(line.config_folders)
    planned: list[Plan] = []

    def planning(values: dict[str, Any]) -> Plan:
        planned.append(plan_of(values))
        return planned[-1]

    with loader(line.config_folders) as using:
        swept = [o for o in line.overrides if overrides.is_sweep(o, using)]
        single = [o for o in line.overrides if o not in swept]
        problems = overrides.find_problems(single, using, lambda o: values_of(o, using), planning, plannable)
        problems += [overrides.not_swept(o, "Type one of them") for o in swept]
    if problems:
        raise ConfigError(problems)
    return planned[-1]


def check(line: CommandLine, runnable: PlanCheck) -> None:
    """Raises ConfigError with every problem of a command line, of all jobs that it asks for. `runnable` raises it for
    a plan that cannot run on this machine."""
    install(line.config_folders)
    if not line.trains:
        _check_shown(line)
        return

    def launchable(plan: Plan) -> None:
        if line.sets("hydra/launcher") and (found := launcher_problem(plan)):
            raise ConfigError([found])

    def runnable_there(plan: Plan) -> None:
        check_all(lambda: launchable(plan), lambda: runnable(plan))

    with loader(line.config_folders) as using:
        problems = overrides.find_problems(
            [o for o in line.overrides if not o.startswith("hydra") and not overrides.is_sweep(o, using)],
            using,
            lambda o: values_of(o, using),
            plan_of,
            runnable_there,
        )
        swept = [o for o in line.overrides if o.startswith("hydra") or overrides.is_sweep(o, using)]
        problems += [p for o in swept for p in overrides.problems_of(o, using)]
        if not problems or line.multirun:
            problems = _sweep_problems(line, using, runnable_there, problems)
        problems += folder_problems(line, using)
        if problems:
            raise ConfigError(problems)


def _check_shown(line: CommandLine) -> None:
    """Raises ConfigError for what cannot even be shown; a value that would not run can."""
    if line.completes:
        return
    with loader(line.config_folders) as using:
        problems = [p for o in line.overrides for p in overrides.problems_of(o, using)]
        problems += [overrides.not_swept(o) for o in line.overrides if overrides.is_sweep(o, using)]
    if problems:
        raise ConfigError(problems)


def run(line: CommandLine, job: JobFunction, sweeping: Callable[[Path, bool], None]) -> None:
    """Run Hydra's application on a command line that was checked; `job` is called for every job that it asks for.
    `sweeping` is told a sweep's folder before its first job, and whether jobs run in processes of their own.

    Raises SystemExit where Hydra ends the process (after --help, say), RunnerError where it or a plugin gives up.
    """
    install(line.config_folders)
    entry = Entry(job, line.config_folders)

    def announced(folder: Path, apart: bool, named: str) -> None:
        entry.started, entry.named = True, named
        sweeping(folder, apart)

    logging.getLogger("hydra._internal.core_plugins.basic_launcher").setLevel(logging.WARNING)  # jobs name themselves
    logging.getLogger("hydra_plugins").setLevel(logging.CRITICAL)  # and tell themselves how they went
    typed = sys.argv
    sys.argv = [typed[0], *line.flags, *as_swept(overrides.prepare(line.overrides), _swept(line)), *_own(line)]
    try:
        with announcing(announced), plugin_errors():
            hydra.main(config_path=str(data_folder("conf")), config_name="config", version_base="1.3")(entry)()
    except (HydraException, OmegaConfBaseException) as error:
        if entry.started:
            raise RunnerError(overrides.describe(error)) from None
        with loader(line.config_folders) as using:
            raise ConfigError([overrides.as_problem(error, line.overrides, using)]) from None
    except OSError as error:
        if entry.started:
            raise
        key = "hydra.sweep.dir" if line.multirun else "hydra.run.dir"  # one that Hydra alone could resolve
        what = f"nothing can be written to {error.filename}: {error.strerror}"
        raise ConfigError([Problem(key, what, f"Set {key}=FOLDER")]) from None
    finally:
        sys.argv = typed


def _swept(line: CommandLine) -> list[str]:
    """The keys that the chosen recipe sweeps."""
    if not line.trains or not line.sets("recipe"):
        return []
    with loader(line.config_folders) as using:
        single = [o for o in line.overrides if not overrides.is_sweep(o, using)]
        return list(sweep_of(single, using)[0] or {})


def _own(line: CommandLine) -> list[str]:
    """What Hydra is told beside what was typed."""
    if not line.trains:
        return []
    with loader(line.config_folders) as using:
        common = [o for o in line.overrides if not o.startswith("hydra") and not overrides.is_sweep(o, using)]
        # not resolved as a whole: a value that a sweep will give (a task's class, say) may still be missing
        config = using.load_configuration("config", overrides.prepare(common), run_mode=RunMode.RUN)
        slurm = OmegaConf.select(config, "launch.name") == "slurm"
    return [ANNOUNCE, *([f"hydra/launcher={TOGETHER}"] if slurm else [])]


def _sweep_problems(
    line: CommandLine, using: ConfigLoader, runnable: PlanCheck, before: list[Problem]
) -> list[Problem]:
    """The problems of a sweep's jobs; `before` are those that its common part has by itself, if it is no sweep."""
    single = [o for o in line.overrides if not overrides.is_sweep(o, using)]
    try:
        swept, sweeper = sweep_of(single, using)
        if swept is None and not line.multirun:
            return before + [overrides.not_swept(o) for o in line.overrides if o not in single]
        jobs = jobs_of(overrides.prepare(line.overrides), swept or {}, sweeper, using)
    except ConfigError as error:
        return before + list(error.problems)
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # `before` tells of what it stumbles over
        return before or [overrides.as_problem(error, line.overrides, using)]
    found: dict[Problem, list[str]] = {}
    for job in jobs:
        try:
            runnable(plan_of(values_of(job, using)))
        except ConfigError as error:
            name = " ".join(o.lstrip("+") for o in job)
            problems = overrides.left_by_choice(error.problems, job, using)
            if not found.keys() >= {*problems}:  # else it has what another has, all of which is known
                problems = overrides.find_problems(job, using, lambda o: values_of(o, using), plan_of, runnable)
            for problem in problems:
                found.setdefault(problem, []).append(name)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            if before:  # it stumbles over what they tell of
                known = {p.key for p in before}
                return before + [p for p in _named(found) if p.key not in known]
            found.setdefault(overrides.as_problem(error, job, using), []).append(" ".join(o.lstrip("+") for o in job))
    return _named(found)


def _named(found: dict[Problem, list[str]]) -> list[Problem]:
    """Problems with the jobs that have them."""
    return [Problem(p.key, f"{p.what} (in the job {_first_of(names)})", p.fix) for p, names in found.items()]


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
