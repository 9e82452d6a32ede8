"""What is wrong with a command line: all of it at once, one line each.

Hydra and pydantic each stop at the first kind of fault that they know. Here the overrides are looked at one
by one (does the key exist, is there such a choice), then whatever is sound is composed and checked, and an override
that is found at fault is left out and the rest checked again, until nothing more turns up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from runner import validation
from runner.compose.defaults import flaw_of_list
from runner.compose.form import malformed
from runner.compose.sources import missing_folders
from runner.compose.sweeps import missing_plugin
from runner.errors import ConfigError, Problem

Checked = TypeVar("Checked")
Compose = Callable[[list[str]], dict[str, Any]]


def prepare(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra should see them: keys inside a section may be set without a `+` before them.

    A task's own keys are free, as are those of a custom optimizer or schedule and options of sbatch, and others exist under
    another choice only. Whether a key may be there is checked later, against the schema, which can say what to type instead.
    """
    inside = re.compile(rf"({'|'.join(validation.keys_of(''))})\.[\w.-]+=")
    return [f"++{o}" if inside.match(o) else o for o in overrides]


def is_sweep(text: str, loader: ConfigLoader) -> bool:
    """Whether an override stands for several values. False for one that cannot be read."""
    try:
        return bool(_read(text, loader).is_sweep_override())
    except HydraException:
        return False


def _read(text: str, loader: ConfigLoader) -> Override:
    """An override, taken apart. Raises HydraException. Hydra's call for a single one would not know the choices of a `glob`."""
    return OverridesParser.create(config_loader=loader).parse_overrides([text])[0]


def not_swept(text: str, instead: str = "Add -m to run one job for each") -> Problem:
    """The problem of several values where one run was asked for."""
    key, _, value = text.partition("=")
    fix = f"{instead}, or quote the value if it is one: \"{key}='{value}'\""
    return Problem(key.lstrip("+"), f"{value} stands for several values", fix)


def find_problems(
    overrides: Sequence[str], loader: ConfigLoader, compose: Compose, check: Callable[[dict[str, Any]], Checked],
    last: Callable[[Checked], object],
) -> list[Problem]:  # fmt: skip
    """Every problem of a command line. `compose` makes plain values of overrides, `check` raises ConfigError or returns what
    `last` looks at, which raises one with all that it finds."""
    problems: list[Problem] = []
    sound: list[str] = []
    for text in overrides:
        found = problems_of(text, loader)
        problems.extend(found)
        sound.extend([] if found else [text])
    while True:
        told = {p.key for p in problems}
        sections = told | {key.partition(".")[0] for key in told}
        try:
            values = compose(sound)
            checked = check(values)
        except ConfigError as error:
            fresh = [p for p in error.problems if p.key not in told and not sections.intersection(p.unless)]
            problems.extend(fresh)
            rest = [o for o in sound if not any(o in _blamed(sound, p.key) for p in fresh)]
            if rest != sound:
                sound = rest
                continue
            return problems
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            return problems or [as_problem(error, overrides, loader)]
        try:
            last(checked)
        except ConfigError as error:
            found = left_by_choice(error.problems, sound, loader)
            # where a choice is at fault, another one stands in for it now, whose keys are others
            fresh = [p for p in found if not told & {p.key, p.key.partition(".")[0]} | sections & {*p.unless}]
            problems.extend(fresh)
            # what is wrong inside an open section is all told at once, and leaving something out there would only add to it
            at_fault = [p.key for p in fresh if not validation.is_open(p.key.partition(".")[0], values)]
            rest = [o for o in sound if not any(o in _blamed(sound, key) for key in at_fault)]
            if rest != sound:
                sound = rest
                continue
        return problems


def left_by_choice(problems: Sequence[Problem], overrides: Sequence[str], loader: ConfigLoader) -> list[Problem]:
    """Problems, with one in place of all those that come from a class typed without `task=custom`: the keys of the task that is
    chosen then become arguments of it."""
    typed = {_name(o): o.partition("=")[2] for o in overrides}
    mine = {".".join(key.split(".")[:2]) for key in typed} | {"task._target_"}
    left = [p for p in problems if p.key.startswith("task.") and p.key.count(".") == 1 and p.key not in mine]
    target = typed.get("task._target_")
    if not left or target is None:
        return list(problems)
    composed = loader.load_configuration("config", prepare(overrides), run_mode=RunMode.RUN)
    chosen = composed.hydra.runtime.choices.get("task")
    if chosen == "custom":  # they come from a recipe, say
        return list(problems)
    names = ", ".join(p.key.partition(".")[2] for p in left)
    what = f"{target} does not take {names}, which task={chosen} sets"
    told = Problem("task._target_", what, f"Type task=custom task._target_={target}")
    return [told, *(p for p in problems if p not in left)]


def describe(error: Exception) -> str:
    """An error of Hydra or OmegaConf as one line: its first sentence, and what it was about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ is not None else ""
    return " ".join(dict.fromkeys([*lines, *([cause] if cause not in ("", "None") else [])]))


def as_problem(error: Exception, overrides: Sequence[str], loader: ConfigLoader) -> Problem:
    """An error of composing `overrides` as a problem."""
    chosen = [o.partition("=")[2].strip("[]") for o in overrides if _name(o) == "recipe"]
    recipes = [name.strip() for names in chosen for name in names.split(",")]
    found = flaw_of_list(error, recipes, loader) if isinstance(error, HydraException) else None
    return found or Problem("", describe(error))


def problems_of(text: str, loader: ConfigLoader) -> list[Problem]:
    """What a single override has wrong with its form, its key or its choice: nothing, or one problem."""
    found = _problem_of(text, loader)
    return [found] if found else []


def _problem_of(text: str, loader: ConfigLoader) -> Problem | None:
    """What a single override has wrong with its form, its key or its choice."""
    try:
        override = _read(text, loader)
    except HydraException as error:
        return malformed(text, describe(error))
    key = override.key_or_group
    if added := _added(text, key, loader):
        return added
    if key == "hydra.searchpath":  # the check looks where --config-dir says; a search path is for files
        what = "is for files of configuration; on the command line it would not be checked"
        return Problem(key, what, "Type --config-dir FOLDER")
    if key.partition(".")[0].partition("/")[0] == "hydra" or override.is_delete():
        return missing_plugin(key, override, loader)
    group = key.replace(".", "/")
    if _is_group(group, loader):
        return _choice_problem(key, override, loader)
    section, _, name = key.partition(".")
    if section not in validation.keys_of(""):
        return validation.unknown_key(key if section == key else section, [*validation.keys_of(""), "recipe", "hydra"])
    chosen = validation.of_choice(key, text.partition("=")[2])
    if chosen is not None:
        return chosen
    if not name or validation.is_open(section, {}) or section in ("optim", "schedule"):
        return None  # the schema knows more, once it is composed
    known = validation.keys_of(section)
    return None if name.partition(".")[0] in known else validation.unknown_key(key, known)


def _added(text: str, group: str, loader: ConfigLoader) -> Problem | None:
    """The problem of a second choice for a group that has one, or of one that is to go somewhere else."""
    name, _, value = text.partition("=")
    if "." in group or group not in (*validation.keys_of(""), "recipe") or not _is_group(group, loader):
        return None
    if "@" in name:
        return Problem(name, f"a choice of {group} cannot be put elsewhere", f"Type {group}={value}")
    if name.startswith("+"):
        return Problem(
            name, f"{group} has a choice already, which is replaced and not added to", f"Type {group}={value}"
        )
    return None


def _choice_problem(key: str, override: Override, loader: ConfigLoader) -> Problem | None:
    if override.is_interval_sweep():
        return Problem(key, "is a group of choices, not a number", _offer(key, "", loader))
    if override.is_sweep_override():
        values = list(override.sweep_string_iterator())
    else:
        value = override.value()
        if isinstance(value, dict) or value is None:
            none = "Leave it out to have none. " if key == "recipe" else ""
            return Problem(key, "is a group: choose one of its options by name", none + _offer(key, "", loader))
        values = [str(v) for v in value] if isinstance(value, list) else [str(value)]
    for value in values:
        if not _exists(f"{key}/{value}", loader):
            return Problem(key, f"'{value}' is not one of its choices", _offer(key, value, loader))
    return None


def _exists(path: str, loader: ConfigLoader) -> bool:
    return any(source.is_config(path) for source in loader.get_sources())


def _is_group(path: str, loader: ConfigLoader) -> bool:
    return any(source.is_group(path) for source in loader.get_sources())


def _offer(key: str, value: str, loader: ConfigLoader) -> str:
    import difflib

    choices = loader.get_group_options(key, ObjectType.CONFIG)
    unfound = "".join(f". {line}" for line in missing_folders()) if key == "recipe" else ""
    close = difflib.get_close_matches(value, choices, 1)
    meant = f"Did you mean {key}={close[0]}? " if close else ""
    return f"{meant}The choices are: {', '.join(choices)}{unfound}"


def _blamed(overrides: Sequence[str], key: str) -> list[str]:
    """The overrides that gave `key` its value: those that name it, with what stands below it (the keys of a choice that is
    left out belong to nothing), or else those of a part above or below it."""
    if any(_name(o) == key for o in overrides):
        return [o for o in overrides if _name(o) == key or _name(o).startswith(f"{key}.")]
    return [o for o in overrides if _sets(o, key)]


def _name(text: str) -> str:
    return text.partition("=")[0].lstrip("+~").partition("@")[0].replace("/", ".")


def _sets(text: str, key: str) -> bool:
    """Whether an override names a key, a part above it or below it."""
    name = _name(text)
    return bool(key) and (name == key or key.startswith(name + ".") or name.startswith(key + "."))
