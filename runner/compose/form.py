"""What keeps the value of an override from being read, in words: a bracket or a quote that is not closed, say."""

from __future__ import annotations

from runner.errors import Problem

_CLOSING = {"(": ")", "[": "]", "{": "}"}


def malformed(text: str, told: str) -> Problem:
    """The problem of an override that Hydra's grammar refuses; `told` is what it says itself."""
    key, _, value = text.partition("=")
    flaw = flaw_of(value)
    what = f"{value} cannot be read: {flaw or told}"
    lead = "Close it, or quote" if flaw and flaw.endswith("not closed") else "Quote"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return Problem(key.lstrip("+~"), what, f"{lead} the value as a whole if it is text: \"{key}='{escaped}'\"")


def flaw_of(value: str) -> str | None:
    """The first bracket or quote that has no partner."""
    expected: list[tuple[str, str]] = []
    at = 0
    while at < len(value):
        sign = value[at]
        if sign in "'\"":
            end = _end_of_quote(value, at)
            if end is None:
                return f"the quote {value[at:]} is not closed"
            at = end
        elif sign in _CLOSING:
            expected.append((sign, _CLOSING[sign]))
        elif sign in _CLOSING.values():
            opened, closing = expected.pop() if expected else ("", "")
            if sign != closing:
                return f"{opened} is closed by {sign}" if opened else f"nothing was opened that {sign} closes"
        elif sign == "\\":
            at += 1  # what follows is text
        at += 1
    return f"{expected[-1][0]} is not closed" if expected else None


def _end_of_quote(value: str, start: int) -> int | None:
    """The place of the quote that ends what the one at `start` begins."""
    at = start + 1
    while at < len(value):
        if value[at] == value[start]:
            return at
        at += 2 if value[at] == "\\" else 1
    return None
