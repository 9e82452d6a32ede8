"""What a node's ranks write, line by line, on its way to the first node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner.follow import CHUNK, Tail
from runner.launch.ranks import Place
from runner.rundir import RunFolder


class Outlet:
    """What the ranks here write, line by line, on its way to the first node."""

    def __init__(self, folder: RunFolder, place: Place, tell: Callable[..., None], sent: Callable[[int], None]):
        """`tell` sends a message, `sent` is told how many bytes of the rows have been."""
        self._tell, self._sent = tell, sent
        numbers = range(place.first, place.first + place.count)
        self._tails: dict[int | None, Tail] = {n: Tail(folder.log(n)) for n in numbers}
        self._tails[None] = Tail(folder.batches)

    def hand_over(self, limit: int = -1) -> None:
        """Send the whole lines since the last time: at most `limit` bytes of each file."""
        for rank, tail in self._tails.items():
            for lines in _parcels(tail.lines(limit, blank=rank is not None)):
                self._tell("rows", rank=rank, lines=lines)
            if rank is None:
                self._sent(tail.taken)

    def close(self) -> None:
        """The ranks have ended: send what is left, also output that no newline ends."""
        self.hand_over()
        for rank, tail in self._tails.items():
            if rank is not None and (rest := tail.rest()):
                self._tell("rows", rank=rank, lines=[rest])


def _parcels(lines: list[str]) -> Iterator[list[str]]:
    """Lines in pieces that make a message of a moderate size each."""
    start, size = 0, 0
    for end, line in enumerate(lines, 1):
        size += len(line)
        if size > CHUNK or end == len(lines):
            yield lines[start:end]
            start, size = end, 0
