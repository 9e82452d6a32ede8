"""What is wrong with the defaults list of a file, a recipe's above all: the file, the group, its choices.

Hydra decides whether a list can be followed. Here what it says becomes one line that names the file as it can be
opened from here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException, MissingConfigException

from runner.compose.reading import shown
from runner.errors import Problem

PRIMARY = ("config", "hydra/config")  # where a choice stands that a recipe or the command line overrides
_IN = re.compile(r"In '(?P<file>[^']+)': ")
_UNUSED = re.compile(r"Could not override '(?P<key>[^']+)'")
_TWICE = re.compile(r"Multiple values for (?P<key>\S+)\. To override")
_EARLY = re.compile(r"In (?P<file>[^:']+): Override '(?P<first>[^']+)' is defined before '(?P<late>[^']+)'")


def flaw_of_list(error: HydraException, recipes: Sequence[str], using: ConfigLoader) -> Problem | None:
    """An error of composing as the problem of a file's defaults list; None where it is about something else. `recipes`
    are those that were chosen."""
    text = str(error)
    inside = _IN.match(text)
    if inside is not None and isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return _missing([*(f"recipe/{name}" for name in recipes), inside["file"]], group, choice, using)
    if inside is not None and (unused := _UNUSED.search(text)):
        return _no_group(inside["file"], unused["key"].partition("@")[0], "", using)
    if early := _EARLY.match(text):
        what = f"its defaults list has {_tight(early['late'])} after the override of {_tight(early['first'])}"
        return Problem(_place(early["file"], "", "", using), what, "Overrides must stand last")
    if (twice := _TWICE.match(text)) and len(recipes) == 1:
        key = twice["key"]
        place = _place(f"recipe/{recipes[0]}", key, "", using)
        return Problem(place, f"its defaults list chooses a second {key}", f"Write override /{key}: ...")
    return None


def _missing(files: Sequence[str], group: str, choice: str, using: ConfigLoader) -> Problem:
    """A choice that does not exist, or one of a group that does not. Hydra names the last of `files`, which need not be
    the one that chooses."""
    choices = using.get_group_options(group, ObjectType.CONFIG)
    if not choices:
        return _no_group(files[-1], group, choice, using)
    close = difflib.get_close_matches(choice, choices, 1)
    fix = f"Did you mean {close[0]}? " if close else ""
    fix += f"The choices of {group} are: {', '.join(choices)}"
    lines = [place for file in files if ", line " in (place := _place(file, group, choice, using))]
    if not lines and files[-1] in PRIMARY:
        return Problem(group, f"'{choice}' is not one of its choices", fix)
    place = lines[0] if lines else _place(files[-1], "", "", using)
    return Problem(place, f"its defaults list chooses {group}: {choice}, which there is not", fix)


def _no_group(file: str, group: str, choice: str, using: ConfigLoader) -> Problem:
    """A group that does not exist, or one that is looked for below the file's own because no slash stands before it."""
    own, _, rest = group.partition("/")
    place = _place(file, rest or group, choice, using)
    if file.startswith(f"{own}/") and rest and using.get_group_options(rest, ObjectType.CONFIG):
        what = f"its defaults list names {rest}, without a slash before it"
        return Problem(place, what, f"Write /{rest}: a group is else looked for in {own}/")
    name = rest if file.startswith(f"{own}/") and rest else group
    if using.get_group_options(name, ObjectType.CONFIG):
        return Problem(
            place, f"its defaults list overrides {name}, of which nothing was chosen before", f"Write /{name}"
        )
    groups = [g for g in using.list_groups("") if g != "hydra"]
    close = difflib.get_close_matches(name, groups, 1)
    meant = f"Did you mean /{close[0]}? " if close else ""
    return Problem(
        place, f"its defaults list names {name}, which is no group", f"{meant}The groups are: {', '.join(groups)}"
    )


def _place(file: str, group: str, choice: str, using: ConfigLoader) -> str:
    """The file as it can be opened from here, with the line that holds `group` and `choice`."""
    for source in using.get_sources():
        if source.is_config(file):
            path = Path(source.path, f"{file.removeprefix('recipe/') if source.scheme() == 'recipes' else file}.yaml")
            if path.is_file():
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                return shown(path) + _line_of(lines, group, choice)
    return file


def _line_of(lines: Sequence[str], group: str, choice: str) -> str:
    """Where the defaults list has an entry of `group` with `choice`, which may be none."""
    name = "" if group == "recipe" else rf"\b{re.escape(group.removeprefix('recipe/'))}\b.*"
    entry = re.compile(rf"\s*-\s.*{name}{re.escape(choice)}")
    found = [number for number, line in enumerate(lines, 1) if group and entry.match(line)]
    return f", line {found[0]}" if found else ""


def _tight(entry: str) -> str:
    return entry.replace(" : ", ": ")
