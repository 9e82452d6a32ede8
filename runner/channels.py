"""The two channels of a command, standard output and error, for as long as somebody reads them.

Where the reader has gone (`| head -1`), what is still written goes nowhere, and the command comes to its own end with its
own exit code: a run is not lost, and `compare` still answers. Where the disk is full it is the same, and is told.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Heard(io.FileIO):
    """A channel that becomes /dev/null once it cannot be written to; `lost` then says why, if anybody still wants it."""

    def __init__(self, descriptor: int):
        super().__init__(descriptor, "w", closefd=False)
        self.lost: str | None = None

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.lost = error.strerror or str(error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def open_all() -> None:
    """Give each of input, output and error that was closed (`>&-`) to /dev/null: the next file that is opened would be taken for it,
    and be overwritten, by us or by a rank."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            os.set_inheritable(number, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            channel = open(number, "w", closefd=False)  # noqa: SIM115 (it is kept as long as the process)
            setattr(sys, name, channel)
            setattr(sys, f"__{name}__", channel)


@contextmanager
def outlasting() -> Iterator[list[str]]:
    """Meanwhile a channel that nobody reads, or that cannot be written to, raises nothing. Channels that somebody has put in
    their place stay as they are. Yields what is known afterwards: why something that was written is lost."""
    before, lost = (sys.stdout, sys.stderr), list[str]()
    heard = [_heard(now, own) for now, own in zip(before, (sys.__stdout__, sys.__stderr__), strict=True)]
    sys.stdout, sys.stderr = (channel for channel, _ in heard)
    try:
        yield lost
    finally:
        for channel, raw in heard:
            if raw is not None:
                channel.flush()
                lost += [raw.lost] if raw.lost else []
        sys.stdout, sys.stderr = before


def _heard(channel: TextIO, own: TextIO | None) -> tuple[TextIO, _Heard | None]:
    if channel is not own or not isinstance(channel, io.TextIOWrapper):
        return channel, None
    channel.flush()
    raw = _Heard(channel.fileno())
    text = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=channel.encoding,
        errors=channel.errors,
        line_buffering=channel.line_buffering,
        write_through=channel.write_through,
    )
    return text, raw
