"""The flags of a command line: which there are, what each takes, and what was probably meant by another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from runner import validation
from runner.errors import Problem
from runner.usage import USAGE

_SHORT = {
    "-m": "--multirun", "-r": "--run", "-h": "--help", "-sc": "--shell-completion", "-c": "--cfg", "-i": "--info",
    "-p": "--package", "-cp": "--config-path", "-cn": "--config-name", "-cd": "--config-dir",
}  # fmt: skip
OPTIONAL = "--info"  # may stand without its value, which is then the first one that it takes
SHOWING = {"--help", "--hydra-help", "--cfg", "--info", "--shell-completion"}  # after them nothing is run
_MODES = ("--run", "--multirun", "--cfg", "--info", "--shell-completion")  # of which there can be one


@dataclass(frozen=True, slots=True)
class Flags:
    """Those of one verb. `takes` says what stands after each: nothing, one of some words, or, in capitals, any word.
    `others` are taken out of the command line before it is read."""

    verb: str
    takes: Mapping[str, tuple[str, ...]]
    others: tuple[str, ...] = ()

    def values_of(self, name: str) -> tuple[str, ...] | None:
        """What may stand after a flag; None where there is no such flag."""
        return self.takes.get(long(name))

    def unknown(self, name: str, value: str | None) -> Problem:
        """The problem of a word that looks like a flag. `value` is what was typed as its value."""
        typed = name if value is None else f"{name}={value}"
        bare = name.lstrip("-")
        keys = validation.likely(bare)
        if bare.partition(".")[0] in (*validation.keys_of(""), "recipe"):
            return Problem(typed, "is not a flag", f"Type {bare}={value or '...'}, without the dashes")
        what = "is not a flag" if self.verb == "run" else f"is not a flag of {self.verb}"
        known = [*self.takes, *self.others]
        begun = [f for f in known if len(bare) > 1 and f.startswith(f"--{bare}")]
        near = begun or difflib.get_close_matches(f"--{bare}", known, 1)
        owners = [verb for verb, text in USAGE.items() if name in re.findall(r"--[a-z-]+", text)]
        fix = ""
        if owners and self.verb not in owners:
            has = "has" if len(owners) == 1 else "have"
            fix = f"{' and '.join(owners)} {has} it: python -m runner {owners[0]} {name}. "
        elif keys and not begun and ("." in keys[0] or not near):
            fix = f"Did you mean {' or '.join(keys)}={value or '...'}? "
        elif near:
            fix = f"Did you mean {near[0]}? "
        lead = "The flags are: " if self.verb == "run" else "It takes "
        return Problem(typed, what, f"{fix}{lead}{', '.join(known)}")

    def misused(self, given: Mapping[str, str]) -> list[Problem]:
        """What is wrong with flags beside each other."""
        modes = [name for name in _MODES if name in given]
        problems = []
        if len(modes) > 1:
            problems.append(
                Problem(" ".join(modes), "cannot stand together", f"Type only one of them: {' or '.join(modes)}")
            )
        if "--resolve" in given and not {"--cfg", "--help"}.intersection(given):
            problems.append(
                Problem("--resolve", "shows values as they come out, and nothing is shown", "Add --cfg job")
            )
        if "--package" in given and "--cfg" not in given:
            problems.append(
                Problem("--package", "shows a part of the configuration, and nothing is shown", "Add --cfg job")
            )
        return problems


def long(name: str) -> str:
    """The long form of a flag."""
    return _SHORT.get(name, name)


def wrong_value(name: str, value: str | None, known: tuple[str, ...]) -> Problem | None:
    """The problem of what stands after a flag that takes one of the words `known`; None where there is none."""
    if value is None or (not value and known[0].isupper()):
        return Problem(name, "needs a value", f"Type {name} {known[0]}")
    if known[0].isupper() or value in known:
        return None
    close = difflib.get_close_matches(value, known, 1)
    return Problem(name, f"'{value}' is none of {', '.join(known)}", f"Type {name} {(close or known)[0]}")


HYDRA = Flags(
    "run",
    {
        "--multirun": (), "--cfg": ("job", "hydra", "all"), "--resolve": (), "--package": ("PACKAGE",),
        "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        "--config-dir": ("FOLDER",), "--config-path": ("FOLDER",), "--config-name": ("NAME",), "--run": (),
        "--shell-completion": (), "--hydra-help": (), "--help": (),
    },
    ("--version",),
)  # fmt: skip
