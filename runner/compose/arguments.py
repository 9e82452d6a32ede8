"""A command line, taken apart: Hydra's flags, the overrides, and what is neither."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner import validation
from runner.errors import ConfigError, Problem

# Hydra's flags that take a value, and those after which it only shows something
_WITH_VALUE = {
    "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p",
    "--cfg", "-c", "--info", "-i", "--experimental-rerun",
}  # fmt: skip
_SHOWING = {
    "--help",
    "-h",
    "--hydra-help",
    "--version",
    "-V",
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--shell-completion",
    "-sc",
}
_OPTIONAL_VALUE = {"--info", "-i"}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`flags` with their values, in Hydra's order: before the `overrides`, wherever they stood."""

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    config_folders: tuple[Path, ...]

    @property
    def multirun(self) -> bool:
        return bool({"-m", "--multirun"}.intersection(self.flags))

    @property
    def trains(self) -> bool:
        """Whether anything is to be run, not only shown."""
        return not _SHOWING.intersection(f.partition("=")[0] for f in self.flags)

    def sets(self, key: str) -> bool:
        """Whether an override gives `key` a value."""
        return any(o.lstrip("+").partition("=")[0].partition("@")[0] == key for o in self.overrides)


def parse(arguments: Sequence[str]) -> CommandLine:
    """Take a command line apart. Raises ConfigError for an argument that is neither a flag nor `key=value`."""
    flags: list[str] = []
    overrides: list[str] = []
    folders: list[Path] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        name, _, value = argument.partition("=")
        if name in _WITH_VALUE and not value and queue and not (name in _OPTIONAL_VALUE and "=" in queue[0]):
            value = queue.pop(0)
            flags.append(value)
        if name in ("--config-dir", "-cd") and value:
            folders.append(Path(value).absolute())
    line = CommandLine(tuple(flags), tuple(overrides), tuple(folders))
    stray = [o for o in overrides if "=" not in o and not o.startswith("~")]
    if stray and not {"--shell-completion", "-sc"}.intersection(flags):
        raise ConfigError(_stray(word) for word in stray)
    like = [
        f for f in flags if f.startswith("--") and f[2:].partition("=")[0].partition(".")[0] in validation.keys_of("")
    ]
    if like:
        raise ConfigError(Problem(f, "is not a flag", f"Type {f[2:]}, without the dashes") for f in like)
    missing = [f for f in folders if not f.is_dir()]
    if missing:
        raise ConfigError(Problem("--config-dir", f"there is no folder {f}") for f in missing)
    return line


def _stray(word: str) -> Problem:
    if not word.isidentifier():
        return Problem(word, "is neither a verb nor key=value")
    close = difflib.get_close_matches(word, [*validation.keys_of(""), "recipe"], 1)
    return Problem(word, "is neither a verb nor key=value", f"Type {close[0] if close else word}=... to set a value")
