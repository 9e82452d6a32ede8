"""What every part of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )


class Open(Section):
    """A section whose further keys are free: they become arguments of the class that `_target_` names."""

    model_config = ConfigDict(extra="allow")
    target: Annotated[str, Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})
