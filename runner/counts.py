"""Counts as they are read: `1 process`, `2 processes`."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """`n` of what `noun` names one of, with the noun in its number. Of several words the last one changes."""
    if n == 1:
        return f"{n} {noun}"
    return f"{n} {noun}{'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"
