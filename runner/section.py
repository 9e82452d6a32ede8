"""What every part of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A part of the configuration: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )


def is_dotted(name: str) -> bool:
    """Whether it is a name in a module, in whatever letters Python takes."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _dotted(name: str) -> str:
    if not is_dotted(name):
        raise PydanticCustomError("string_pattern_mismatch", "is not a dotted name")
    return name


class Open(Section):
    """A section whose further keys are free: they become arguments of the class that `_target_` names."""

    model_config = ConfigDict(extra="allow")
    target: Annotated[str, Field(alias="_target_"), AfterValidator(_dotted)]

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})
