"""Hydra's application: from a command line to checked configurations, one for each job.

`run` gives every job's configuration to a function; `compose_one` only makes the configuration. Either raises
ConfigError with all problems of the command line before anything starts.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner import schema
from runner.compose import overrides as command_line
from runner.compose.sources import data_folder, install
from runner.errors import ConfigError, Problem
from runner.plan import Plan, make_plan


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


class _ConfigRefused(SystemExit):
    """Carries a ConfigError through Hydra, which would otherwise take it for the failure of a job."""

    def __init__(self, error: ConfigError):
        super().__init__(error.exit_code)
        self.error = error


def run(arguments: list[str], job: JobFunction, check: PlanCheck) -> None:
    """Run Hydra's application on a command line. `job` is called for every job that it asks for, once `check`
    has found nothing against any of them: it raises ConfigError for a plan that cannot run here.

    Raises ConfigError, and SystemExit where Hydra ends the process (after --help, or when a job failed).
    """
    install()
    started = False

    def entry(config: DictConfig) -> float | None:
        nonlocal started
        with _refusing(Path(HydraConfig.get().runtime.output_dir)):
            made = _job(config)
            check(made.plan)
        started = True
        return job(made)

    logging.getLogger("hydra._internal.core_plugins.basic_launcher").setLevel(logging.WARNING)  # jobs name themselves
    arguments = _flags_first(arguments)
    values = _overrides_of(arguments)
    if not _SHOWING.intersection(arguments):
        _refuse_early(values, "-m" in arguments or "--multirun" in arguments, check)
    sys.argv[1:] = [a for a in arguments if a not in values] + command_line.prepare(values)
    try:
        hydra.main(config_path=str(data_folder("conf")), config_name="config", version_base="1.3")(entry)()
    except _ConfigRefused as refused:
        raise _all_problems(values, refused.error) from None
    except SystemExit as ended:
        if ended.code == 1 and not started:  # Hydra has said what is wrong with the configuration
            raise SystemExit(ConfigError.exit_code) from None
        raise


def compose_one(values: list[str]) -> Plan:
    """The plan of one command line without flags. Raises ConfigError with every problem in it."""
    install()
    with _loader() as loader:
        problems = command_line.find_problems(values, loader, _plain_of(loader), _check)
        if problems:
            raise ConfigError(problems)
        return _check(_plain_of(loader)(values))


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved plain types, without Hydra's own section. Raises ConfigError for a value that is missing."""
    bare = OmegaConf.masked_copy(config, [str(k) for k in config if k not in ("hydra", "recipe")])
    missing = sorted(OmegaConf.missing_keys(bare))
    if missing:
        raise ConfigError(Problem(k, "has no value", f"Set it: {k}=...") for k in missing)
    values = OmegaConf.to_container(bare, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return {str(k): v for k, v in values.items()}


@contextlib.contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Carry a ConfigError through Hydra, and take away the empty folder that Hydra made for the job."""
    try:
        yield
    except ConfigError as error:
        for empty in (folder, folder.parent, folder.parent.parent):
            with contextlib.suppress(OSError):
                if empty != Path.cwd():
                    empty.rmdir()
        raise _ConfigRefused(error) from None


_SHOWING = frozenset({"--help", "-h", "--hydra-help", "--shell-completion", "-sc", "--version"})
_WITH_VALUE = frozenset(
    {
        "--config-path",
        "-cp",
        "--config-name",
        "-cn",
        "--config-dir",
        "-cd",
        "--cfg",
        "-c",
        "--package",
        "-p",
        "--info",
        "-i",
    }
)


def _flags_first(arguments: list[str]) -> list[str]:
    """Flags before overrides: argparse, as Hydra uses it, refuses a flag that follows one."""
    flags: list[str] = []
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("-"):
            rest.append(argument)
            continue
        flags.append(argument)
        if argument in _WITH_VALUE and queue and "=" not in queue[0]:
            flags.append(queue.pop(0))
    return flags + rest


def _overrides_of(arguments: list[str]) -> list[str]:
    return [a for a in arguments if ("=" in a and not a.startswith("-")) or a.startswith("~")]


def _refuse_early(values: list[str], multirun: bool, check: PlanCheck) -> None:
    """What can be told before Hydra starts: wrong keys, wrong choices, and every job of a sweep.

    Hydra composes the jobs of a sweep before the first one, but knows nothing of our checks.
    """
    with _loader() as loader:
        problems = [p for p in (command_line.problem_of(v, loader) for v in values) if p]
        if not problems and multirun:
            problems = _sweep_problems(values, loader, check)
    if problems:
        raise _all_problems(values, ConfigError(problems))


def _sweep_problems(values: list[str], loader: ConfigLoaderImpl, check: PlanCheck) -> list[Problem]:
    problems: list[Problem] = []
    prepared = command_line.prepare(values)
    single = [v for v in values if not command_line.is_sweep(v, loader)]
    swept = _swept_by_recipe(command_line.prepare(single), loader)
    for job in command_line.jobs_of(prepared, swept, loader):
        try:
            check(_check(_plain_of(loader)(job)))
        except ConfigError as error:
            name = " ".join(o.lstrip("+") for o in job if not o.startswith("hydra."))
            problems.extend(Problem(p.key, f"{p.what} (in the job {name})", p.fix) for p in error.problems)
    return problems


def _swept_by_recipe(values: list[str], loader: ConfigLoaderImpl) -> dict[str, Any]:
    config = loader.load_configuration("config", values, run_mode=RunMode.MULTIRUN)
    return dict(config.hydra.sweeper.params or {}) if "params" in config.hydra.sweeper else {}


def _all_problems(values: list[str], first: ConfigError) -> ConfigError:
    """`first`, and whatever else is wrong with the same command line."""
    with _loader() as loader:
        single = [v for v in values if not v.startswith("hydra") and not command_line.is_sweep(v, loader)]
        more = command_line.find_problems(single, loader, _plain_of(loader), _check)
    return ConfigError([*first.problems, *more])


def _check(values: dict[str, Any]) -> Plan:
    return make_plan(schema.read(values))


@contextlib.contextmanager
def _loader() -> Iterator[ConfigLoaderImpl]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(data_folder("conf")), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        yield loader
    GlobalHydra.instance().clear()


def _plain_of(loader: ConfigLoaderImpl) -> command_line.Compose:
    def compose(values: list[str]) -> dict[str, Any]:
        config = loader.load_configuration(
            config_name="config", overrides=command_line.prepare(values), run_mode=RunMode.RUN
        )
        return plain(config)

    return compose


def _job(config: DictConfig) -> Job:
    values = plain(config)
    plan = _check(values)
    settings = HydraConfig.get()
    overrides = [o.removeprefix("++") for o in settings.overrides.task]
    return Job(
        plan=plan,
        folder=Path(settings.runtime.output_dir),
        config_yaml=OmegaConf.to_yaml(OmegaConf.create(values)),
        overrides_yaml=OmegaConf.to_yaml(OmegaConf.create(overrides)),
        overrides=tuple(overrides),
        sweep=Path(settings.sweep.dir).absolute() if settings.mode is RunMode.MULTIRUN else None,
    )
