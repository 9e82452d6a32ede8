"""A command line, taken apart: flags, overrides, and what is neither."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner import validation
from runner.compose.flags import HYDRA, OPTIONAL, SHOWING, Flags, long, wrong_value
from runner.errors import ConfigError, Problem
from runner.usage import VERBS

NEITHER = "is neither a verb nor key=value"
_KEY = r"[~+]*[A-Za-z_][\w./@:-]*"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`flags` in their long form with their values, in Hydra's order: before the `overrides`, wherever they stood."""

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    config_folders: tuple[Path, ...]

    @property
    def multirun(self) -> bool:
        return "--multirun" in self.flags

    @property
    def trains(self) -> bool:
        """Whether anything is to be run, not only shown."""
        return not SHOWING.intersection(self.flags)

    @property
    def completes(self) -> bool:
        """Whether a shell asks what could be typed next: then half a word is no mistake."""
        return "--shell-completion" in self.flags

    def sets(self, key: str) -> bool:
        """Whether an override gives `key` a value."""
        return any(o.lstrip("+").partition("=")[0].partition("@")[0] == key for o in self.overrides)


def parse(arguments: Sequence[str], known: Flags = HYDRA) -> CommandLine:
    """Take a command line apart. Raises ConfigError for all that is neither a flag of `known` nor `key=value`."""
    flags: list[str] = []
    overrides: list[str] = []
    problems: list[Problem] = []
    given: dict[str, str] = {}
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--":
            overrides += queue
            break
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        name, equals, text = argument.partition("=")
        values, value = known.values_of(name), text if equals else None
        if values == ():
            problems += [Problem(argument, f"{name} takes no value", f"Type {name}")] if equals else []
            flags.append(long(name))
            given[long(name)] = ""
            continue
        if value is None and queue and _is_value(queue[0], name, values):
            value = queue.pop(0)
        if values is None:
            problems.append(known.unknown(name, value))
            continue
        if value is None and long(name) == OPTIONAL:
            value = values[0]
        wrong = wrong_value(name, value, values)
        problems += [wrong] if wrong else []
        given[long(name)] = value or ""
        flags += [long(name), value or ""]
    problems += known.misused(given)
    if "--shell-completion" not in given:
        problems += _stray(overrides)
    folders = [Path(v).absolute() for f, v in pairwise(flags) if f == "--config-dir" and v]
    problems += [Problem("--config-dir", f"there is no folder {f}") for f in folders if not _is_folder(f)]
    if problems:
        raise ConfigError(problems)
    return CommandLine(tuple(flags), tuple(overrides), tuple(folders))


def _is_value(word: str, name: str, values: tuple[str, ...] | None) -> bool:
    """Whether a word is meant as the value of the flag before it."""
    if word.startswith("-"):
        return False
    return "=" not in word or not (values is None or long(name) == OPTIONAL or not values[0].isupper())


def _stray(words: Sequence[str]) -> list[Problem]:
    """The problems of words that are no overrides, and of such that a space has cut into several."""
    if words and (verb := _verb_meant(words[0])):  # then the rest is meant for it
        return [Problem(words[0], NEITHER, f"Did you mean python -m runner {verb}?")]
    problems = []
    at = 0
    while at < len(words):
        count = _cut(words[at : at + 3])
        word = " ".join(words[at : at + count])
        at += count
        key, equals, value = (part.strip() for part in word.partition("="))
        if count > 1 or (equals and key and word.partition("=")[0] != key):
            typed = f"{key}={value}" if equals else word.replace(" ", "=")
            problems.append(Problem(word, "has a space in it", f"Type {_quoted(typed)}"))
        elif not word:
            what = "an argument is empty: a variable of the shell that is not set?"
            problems.append(Problem("''", what, "Leave it out, or type key=value"))
        elif equals and not key:
            problems.append(Problem(word, "names no key before the =", f"Type accum{word}, say"))
        elif equals and re.fullmatch(_KEY, key) is None:
            problems.append(Problem(word, f"'{key}' cannot be the name of a key", "Type key=value: accum=4, say"))
        elif not equals and not word.startswith("~"):
            problems.append(_neither(word))
    return problems


def _cut(words: Sequence[str]) -> int:
    """How many of the first words belong together: `accum = 4`, `accum =4`, `accum= 4` or, of a key that there is, `accum 4`."""
    first, *rest = words
    if not rest or re.fullmatch(f"{_KEY}=?", first) is None:
        return 1
    if first.endswith("="):
        return 1 if "=" in rest[0] or rest[0].startswith(("~", "+")) else 2
    if rest[0] == "=":
        return len(words) if len(words) == 3 and "=" not in rest[1] else 2
    if rest[0].startswith("="):
        return 2
    keys = validation.keys_of("")
    if first.partition(".")[0] not in keys or rest[0].partition(".")[0] in (*keys, *VERBS):
        return 1
    return 2 if re.fullmatch(r"[\w.+-]+", rest[0]) else 1


def _verb_meant(word: str) -> str | None:
    known = [*validation.keys_of(""), "recipe", *VERBS]
    return None if "=" in word or word in known else next(iter(difflib.get_close_matches(word, VERBS, 1, 0.75)), None)


def _neither(word: str) -> Problem:
    """The problem of a word that is no override."""
    what = NEITHER
    if word in VERBS:
        return Problem(word, "a verb stands first", f"Type python -m runner {word} ...")
    key, colon, value = word.partition(":")
    names = [*validation.keys_of(""), "recipe"]
    if colon and key.partition(".")[0] in names:
        return Problem(word, what, f"Type {_quoted(f'{key}={value}')}")
    if key not in names and _is_folder(Path(word)):
        return Problem(word, what, "To compare runs type python -m runner compare RUN RUN...")
    if re.fullmatch(r"[\w.]+", word) is None:
        return Problem(word, what)
    meant = word
    if word.partition(".")[0] not in names:
        meant = (validation.likely(word) or [word])[0]
    return Problem(word, what, f"Type {meant}=... to set a value")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, say
        return False


def _quoted(override: str) -> str:
    """An override as it must be typed in a shell."""
    return override if re.fullmatch(r"[\w.,:/@%+=~-]*", override) else f"'{override}'"
