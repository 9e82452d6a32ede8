"""A finding: one line about what is wrong or worth knowing, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """`wrong`: it keeps runs from working, or makes them slow or misleading. Else it is only good to know."""

    what: str
    cure: str
    wrong: bool = True

    def __str__(self) -> str:
        line = f"{'wrong' if self.wrong else 'note'}: {self.what}"
        return f"{line}. {self.cure}" if self.cure else line

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
