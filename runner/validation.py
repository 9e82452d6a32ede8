"""From the plain values that Hydra composed to a checked `Config`: every problem at once, one line each."""

from __future__ import annotations

import difflib
import json
from typing import Any

from pydantic import ValidationError

from runner.errors import ConfigError, Problem
from runner.schema import Config

UNIONS = ("optim", "schedule", "tracker", "launch")  # sections whose keys depend on the choice


def read(values: dict[str, Any]) -> Config:
    """The checked configuration of plain `values`. Raises ConfigError with every problem in them."""
    try:
        # through JSON: there, strict types still accept the text of an enum and a list for a tuple
        return Config.model_validate_json(json.dumps(values))
    except ValidationError as error:
        found = [_problem(e, values) for e in error.errors()]
        raise ConfigError({p.key: p for p in reversed(found)}.values()) from None  # a union reports a key twice


def keys_of(section: str) -> list[str]:
    """The keys that may stand directly in `section` ('' for the top), whatever is chosen for it."""
    if not section:
        return list(Config.model_fields)
    field = Config.model_fields.get(section)
    if field is None:
        return []
    annotation: Any = field.annotation
    models: list[Any] = [m for m in getattr(annotation, "__args__", (annotation,)) if hasattr(m, "model_fields")]
    return list(dict.fromkeys(f.alias or n for m in models for n, f in m.model_fields.items()))


def is_open(section: str, values: dict[str, Any]) -> bool:
    """Whether further keys are free in `section`: a task's own, or a custom optimizer's."""
    chosen = values.get(section)
    return section == "task" or (isinstance(chosen, dict) and chosen.get("name") == "custom")


def _problem(error: Any, values: dict[str, Any]) -> Problem:
    """A validation error of pydantic in one line: the dotted key, what was found, what may stand there."""
    loc = [str(part) for part in error["loc"]]
    tagged = len(loc) > 1 and loc[0] in UNIONS
    if tagged:  # pydantic puts the chosen class between the section and the key
        loc.pop(1)
    if loc[-1] in ("int", "str", "constrained-int"):
        loc.pop()
    key, kind, found, context = ".".join(loc), error["type"], error["input"], error.get("ctx", {})
    shown = json.dumps(found) if not isinstance(found, str) else f"'{found}'"
    if kind == "extra_forbidden":
        section = ".".join(loc[:-1])
        return _of_another_choice(section, loc[-1], found, values) or unknown_key(key, _siblings(section, values))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        names = _names(key)
        return Problem(key, "is none of its choices", f"Choose one by {key}={names[0]}; there are: {', '.join(names)}")
    if kind == "missing" and loc[-1].isdigit():
        return Problem(".".join(loc[:-1]), f"{shown} has too few values")
    if kind == "missing":
        return Problem(key, "is missing", f"Set it with {key}=...")
    if kind in ("enum", "literal_error"):
        return Problem(key, f"{shown} is none of the choices {context['expected'].replace(chr(39), '')}")
    if kind == "string_pattern_mismatch":
        return Problem(key, f"{shown} does not name a class", f"Give its full name: {key}=my_module.MyClass")
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return Problem(key, f"{shown} {message}" if message.startswith("should") else f"{shown}: {message}")


def _of_another_choice(section: str, name: str, found: Any, values: dict[str, Any]) -> Problem | None:
    """The problem of a key that the chosen option does not have, and another one has."""
    if section not in UNIONS:
        return None
    owners = [choice for model in _models(section) if name in _own_keys(model) for choice in _choices(model)]
    if not owners:
        return None
    key, chosen = f"{section}.{name}", f"{section}={values[section].get('name')}"
    own = ", ".join(sorted(_siblings(section, values))) or "none"
    which = " and ".join(f"{section}={owner}" for owner in owners) + (" have it" if owners[1:] else " has it")
    shown = found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))
    fix = f"{which}: type {section}={owners[0]} {key}={shown}. The keys of {chosen} are: {own}"
    return Problem(key, f"is not a key of {chosen}", fix)


def _siblings(section: str, values: dict[str, Any]) -> list[str]:
    """The keys that a message should offer: those of the choice that was made, where they differ."""
    chosen = values.get(section)
    for model in _models(section) if section in UNIONS else ():
        if isinstance(chosen, dict) and chosen.get("name") in _choices(model):
            return _own_keys(model)
    return keys_of(section)


def _models(section: str) -> tuple[Any, ...]:
    """The classes of a section that has one for each choice, or a few of them."""
    annotation: Any = Config.model_fields[section].annotation
    return tuple(annotation.__args__)


def _choices(model: Any) -> tuple[str, ...]:
    return tuple(model.model_fields["name"].annotation.__args__)


def _own_keys(model: Any) -> list[str]:
    return [f.alias or n for n, f in model.model_fields.items() if n != "name"]


def _names(section: str) -> list[str]:
    return [name for model in _models(section) for name in _choices(model)]


def of_choice(key: str, value: str) -> Problem | None:
    """The problem of a key that only the choice itself may set: `optim.name=sgd` would leave all others as they were."""
    section, _, name = key.partition(".")
    if section not in UNIONS or name != "name":
        return None
    return Problem(key, "is set by the choice", f"Type {section}={value}; there are: {', '.join(_names(section))}")


def likely(name: str) -> list[str]:
    """The keys that were probably meant by `name`: those of that name in some section, or else the nearest at the top."""
    own = [f"{section}.{name}" for section in keys_of("") if name != "name" and name in keys_of(section)]
    return own[:3] or difflib.get_close_matches(name, [*keys_of(""), "recipe"], 1)


def unknown_key(key: str, choices: list[str]) -> Problem:
    """The problem of a key that does not exist, with the one that was probably meant."""
    section, _, name = key.rpartition(".")
    if not choices:
        return Problem(key, "is not a key of the configuration", f"{section} is a value: type {section}=...")
    close = [f"{section}.{name}" for name in difflib.get_close_matches(name, choices, 1)] if section else likely(name)
    where = f"of {section} " if section else ""
    listed = f"The keys {where}are: {', '.join(sorted(choices))}"
    return Problem(
        key, "is not a key of the configuration", (f"Did you mean {' or '.join(close)}? " if close else "") + listed
    )
