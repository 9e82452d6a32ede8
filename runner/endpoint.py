"""HOST:PORT, as users type where machines meet."""

from __future__ import annotations

import re

_ENDPOINT = re.compile(r"^(?P<host>[A-Za-z0-9._-]+):(?P<port>\d{1,5})$")


def endpoint(text: str) -> tuple[str, int] | None:
    """Host and port; None if the text is none, or the port no number from 1 to 65535."""
    found = _ENDPOINT.match(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        return None
    return found["host"], int(found["port"])
