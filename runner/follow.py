"""Following files while others append to them: the whole lines, and the rows, that a file has gained since the last look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import records

CHUNK = 1 << 18  # bytes of one look: what is behind catches up over several, so that none takes long


class Tail:
    """A place in a file that grows. A line counts once its newline is there; a cut one is never seen."""

    def __init__(self, path: Path):
        self._path, self._at, self._rest = path, 0, b""

    def lines(self, limit: int = -1, blank: bool = False) -> list[str]:
        """The whole lines since the last look, of at most `limit` bytes (-1: of all there are); `blank` ones too, if asked."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(limit)
        except FileNotFoundError:
            return []
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole if line or blank]

    @property
    def taken(self) -> int:
        """Bytes of the whole lines that were given so far."""
        return self._at - len(self._rest)

    def rest(self) -> str:
        """What stands after the last newline, once nobody will write any more."""
        rest, self._rest = self._rest, b""
        return rest.decode(errors="replace")

    def rows(self, limit: int = -1) -> list[dict[str, Any]]:
        """The rows since the last look; see `lines`."""
        return [row for line in self.lines(limit) if (row := records.decode(line)) is not None]
