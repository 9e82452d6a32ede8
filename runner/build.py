"""From names to objects: makes what a `_target_` in the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Problem, TaskError
from runner.schema import Config
from runner.targets.check import problems_of

BUILT_IN = "runner.tasks."  # tasks of ours: they can be looked at before torch is there


def build(target: str, *positional: Any, **arguments: Any) -> Any:
    """Call the class or function that `target` names. Arguments with a `_target_` of their own are made first.

    Raises TaskError if there is no such thing, or if it does not take these arguments.
    """
    found = locate(target)
    made = {name: _nested(value) for name, value in arguments.items()}
    try:
        return found(*positional, **made)
    except TypeError as error:
        trace = error.__traceback__
        if trace is not None and trace.tb_next is None:  # raised by the call itself, not inside it
            raise TaskError(f"{target} cannot be made with the arguments {sorted(made)}: {error}") from error
        raise


def locate(target: str) -> Any:
    """The class or function of a dotted name. Raises TaskError that says which part of the name is not there."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise  # the module is there, something that it imports is not
        raise TaskError(
            f"_target_={target}: there is no module {error.name} in {Path.cwd()} or on the import path"
        ) from error
    except AttributeError:
        names = [n for n in dir(importlib.import_module(module)) if n[0].isupper()]
        raise TaskError(f"_target_={target}: the module {module} has no {name}; it has {', '.join(names)}") from None


def check_targets(config: Config, here: bool = True) -> None:
    """Raises ConfigError with everything that is wrong with the targets of a configuration and can be told without importing
    torch. `here`: they are to be made on this machine."""
    task, problems = config.task, list(problems_of(config, here))
    if task.target.startswith(BUILT_IN) and not any(p.key.startswith("task.") for p in problems):
        try:
            build(task.target, **task.arguments)  # cheap: data and model are made later
        except TaskError as error:
            problems.append(Problem("", str(error)))
    if problems:
        raise ConfigError(problems)


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        inner = {k: _nested(v) for k, v in value.items()}
        return build(inner.pop("_target_"), **inner) if "_target_" in inner else inner
    return [_nested(v) for v in value] if isinstance(value, list) else value
