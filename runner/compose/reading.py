"""What keeps a YAML file from being read, in one line that says where."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

from runner.errors import Problem

UNREADABLE = (YAMLError, OSError, UnicodeError)  # what Hydra and OmegaConf raise of a file's text


def flaw_of(file: Path) -> Problem | None:
    """What is wrong with the text of a configuration's file; None where it can be read."""
    try:
        content = OmegaConf.load(file)
    except UNREADABLE as error:
        return unreadable(file, error)
    return None if isinstance(content, DictConfig) else no_mapping(file)


def no_mapping(file: Path) -> Problem:
    return Problem(shown(file), "holds no keys with values", "Write KEY: VALUE, each on a line")


def unreadable(file: Path, error: Exception) -> Problem:
    """An error of reading `file` as a problem. `error` may know of the file by itself."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return Problem(shown(file), "cannot be read: " + " ".join(str(error).split()))
    mark, begun = error.problem_mark, error.context_mark
    what = " ".join(f"{error.problem or 'cannot be read'}".split("\n")).strip()
    if begun is not None and begun.line != mark.line and error.context is not None:
        what += f" ({error.context} that begins in line {begun.line + 1})"
    fix = "Indent by spaces" if "'\\t'" in what else ""
    return Problem(f"{shown(file)}, line {mark.line + 1}", what, fix)


def shown(file: Path) -> str:
    """As short as it can be typed here."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
