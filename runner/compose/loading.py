"""From overrides to a checked plan, without Hydra's application around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from runner import validation
from runner.compose.overrides import prepare
from runner.compose.reading import unreadable
from runner.compose.sources import data_folder
from runner.errors import ConfigError, Problem
from runner.plan import Plan, make_plan


@contextlib.contextmanager
def loader(config_folders: Sequence[Path]) -> Iterator[ConfigLoader]:
    """Hydra's loader over our folders, and over those that the command line adds."""
    path = create_config_search_path(str(data_folder("conf")))
    for folder in config_folders:  # where Hydra's own --config-dir puts it
        path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2(task_name="samestep", config_search_path=path).config_loader
    except MarkedYAMLError as error:  # of a file in a folder given by --config-dir
        mark = error.problem_mark or error.context_mark
        raise ConfigError([unreadable(Path(mark.name if mark is not None else "?"), error)]) from None
    finally:
        GlobalHydra.instance().clear()


def values_of(overrides: Sequence[str], using: ConfigLoader) -> dict[str, Any]:
    """The plain values that overrides compose to. Raises ConfigError, or an error of Hydra."""
    return plain(using.load_configuration("config", prepare(overrides), run_mode=RunMode.RUN))


def sweep_of(overrides: Sequence[str], using: ConfigLoader) -> tuple[dict[str, Any] | None, str]:
    """The parameters that the chosen recipe sweeps, None if the configuration does not ask for a sweep; and the class that
    would sweep."""
    config = using.load_configuration("config", prepare(overrides), run_mode=RunMode.MULTIRUN)
    swept = dict(config.hydra.sweeper.get("params") or {})
    sweeps = swept or config.hydra.mode is RunMode.MULTIRUN
    return swept if sweeps else None, str(config.hydra.sweeper._target_)


def plan_of(values: dict[str, Any]) -> Plan:
    """The plan of plain values. Raises ConfigError with every problem in them."""
    return make_plan(validation.read(values))


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved plain types, without Hydra's own section. Raises ConfigError for a value that is missing, or that
    refers to one that does not exist."""
    bare = OmegaConf.masked_copy(config, [str(k) for k in config if k not in ("hydra", "recipe")])
    try:
        missing = sorted(OmegaConf.missing_keys(bare))
        if missing:
            raise ConfigError(Problem(k, "has no value", f"Set it: {k}=...") for k in missing)
        values = OmegaConf.to_container(bare, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        raise ConfigError([Problem(str(error.full_key or ""), f"cannot be resolved: {first}")]) from None
    assert isinstance(values, dict)
    return {str(k): v for k, v in values.items()}
