"""The rows that a run writes, and how they are appended and read.

A file holds one JSON object per line. Lines are appended whole, with a single write to a file opened for
appending, so several processes of one machine share a file and a kill leaves at most one cut line at the
end. A number that JSON has no form for is written as "NaN", "Infinity" or "-Infinity" (as in protobuf's JSON
mapping) and read back as that number.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from runner.errors import RecordError

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(slots=True)
class BatchRow:
    """One micro-batch: `micro` is its place in the window over all processes, `loss` is per unit of weight,
    `seconds` run from the end of the one before, `synced` says whether its gradients were reduced."""

    update: int
    micro: int
    rank: int
    epoch: int
    loss: float | None
    weight: float
    seconds: float
    synced: bool


@dataclass(slots=True)
class UpdateRow:
    """One optimizer update, over all processes. `loss` is null where the weight is zero; `grad_norm` is the
    global norm before clipping; `bytes` is what one process handed to the reductions; `peak_memory` in bytes, null
    where it was not measured."""

    update: int
    epoch: int
    loss: float | None
    weight: float
    lr: float
    grad_norm: float | None
    seconds: float
    items: int
    digest: str
    collectives: int
    bytes: int
    skipped: bool
    scale: float | None
    peak_memory: int | None


@dataclass(slots=True)
class EvalRow:
    """One evaluation after `update` updates, exact over processes; metrics stand beside `loss` by name."""

    update: int
    epoch: int
    loss: float | None
    weight: float
    metrics: dict[str, float | None]


Row = BatchRow | UpdateRow | EvalRow


def encode(row: Row) -> bytes:
    """The line of a row, without its newline."""
    values = {name: getattr(row, name) for name in row.__slots__}
    if isinstance(row, EvalRow):
        values.update(values.pop("metrics"))
    return to_json(values, inf_nan_mode="strings")


def decode(line: str | bytes) -> dict[str, Any] | None:
    """The row of a line; None for JSON that is no object. Raises ValueError for what is no JSON."""
    row = json.loads(line)
    if not isinstance(row, dict):
        return None
    return {k: _SPECIAL.get(v, v) if isinstance(v, str) else v for k, v in row.items()}


class Appender:
    """A file of rows, open for appending from the first row on."""

    def __init__(self, path: Path):
        self._path, self._fd = path, -1

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows in one write; they are in the file, whole, when this returns."""
        data = b"".join([encode(row) + b"\n" for row in rows])
        try:
            if data and self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise RecordError(f"cannot write {self._path}: {error.strerror}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def append(path: Path, rows: Iterable[Row]) -> None:
    """Append a few rows to a file that is not written often."""
    file = Appender(path)
    file.append(rows)
    file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file as dictionaries. A cut last line, as a kill leaves it, is left out.

    Raises RecordError for a line that is no row and is not the last.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = decode(line)
        except ValueError:
            if number == len(lines):  # no newline after it: the write was cut
                return
            row = None
        if row is None:
            raise RecordError(f"{path}: line {number} is not a row: {line[:60]!r}")
        yield row
