"""A link named outside of the configuration's groups: a file as `doctor` writes it, or a rate such as 100gbit."""

from __future__ import annotations

import re
from pathlib import Path

from omegaconf import OmegaConf
from pydantic import ValidationError

from runner.errors import ConfigError, Problem
from runner.surroundings import Link

_RATE = re.compile(r"(?P<rate>\d+(\.\d+)?)(?P<unit>mbit|gbit)")


def read_link(flag: str, text: str) -> Link:
    """The link of a file, or of a rate. Raises ConfigError that names the `flag` it was given with."""
    if found := _RATE.fullmatch(text):
        return Link(name=text, rate=float(found["rate"]) * (1000 if found["unit"] == "gbit" else 1))
    path = Path(text)
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # the parser's own are many
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        fix = "Give a file that `python -m runner doctor` has written, or a rate such as 350mbit or 100gbit"
        raise ConfigError([Problem(flag, f"'{text}' is no link that can be read ({why})", fix)]) from error
    try:
        link = Link.model_validate(values, strict=False)
    except ValidationError as error:
        raise ConfigError(
            Problem(f"{flag} {text}", f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}")
            for e in error.errors()
        ) from error
    if link.rate is None:
        raise ConfigError([Problem(f"{flag} {text}", "it has no rate", "Set rate: 350 (Mbit/s), say")])
    return link


def overrides_of(link: Link) -> list[str]:
    """The same link, as it is typed on a command line."""
    values = {"name": link.name, "rate": link.rate, "delay": link.delay, "jitter": link.jitter, "loss": link.loss}
    return ["link=custom", *(f"link.{key}={value}" for key, value in values.items())]
