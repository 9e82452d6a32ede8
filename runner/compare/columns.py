"""The rows of a JSON-lines file as one array per column, fast.

The runner writes every row of a file with the same keys in the same order, so the places of all values follow from the
places of the colons, and numbers are decoded for a whole column at once. A block of lines that looks any different is
read by a JSON parser instead: slower, same result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.errors import RecordError

Array = NDArray[Any]
Columns = dict[str, Array]

BLOCK = 4 << 20  # bytes that are decoded at once: small enough for the processor's cache
_COLON, _COMMA, _NEWLINE, _QUOTE, _DOT, _MINUS = b':,\n".-'
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXACT = np.finfo(np.longdouble).nmant >= 63  # then a decimal of up to 18 digits comes out as strtod would have it
_WHOLE = np.array([10**n for n in range(20)], dtype=np.uint64)
_MARGIN = bytes(32)  # the widest value
GROUP = 8  # digits that 32 bits hold
_POWERS = np.cumprod(np.array([1] + 27 * [10], dtype=np.longdouble))  # exact: 5**27 has 63 bits


@dataclass(slots=True)
class Table:
    """The columns of a file. `cut` says that its last line was not whole; `lines` counts whole ones."""

    columns: Columns
    lines: int
    cut: bool
    notes: list[str] = field(default_factory=list)


def read_columns(path: Path, wanted: Sequence[str], pool: ThreadPoolExecutor | None = None) -> Table:
    """The `wanted` columns of a file: float64, with NaN for null; "digest" as uint64, equal for equal texts.

    Raises RecordError for a line that is no row and is not the last, and for rows without a wanted column.
    """
    size = path.stat().st_size if path.exists() else 0
    with path.open("rb") if size else open("/dev/null", "rb") as file:
        blocks = _blocks(file)
        decode = partial(_decode, wanted=tuple(wanted), path=path)
        parts = list(pool.map(decode, blocks)) if pool and size > BLOCK else [decode(b) for b in blocks]
    columns = {
        name: np.concatenate([p[0][name] for p in parts]) if parts else np.empty(0, _dtype(name)) for name in wanted
    }
    return Table(columns, sum(p[1] for p in parts), any(p[2] for p in parts))


def _dtype(name: str) -> type[np.generic]:
    return np.uint64 if name == "digest" else np.float64


def _blocks(file: Any) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, about a block at a time; with the last ones, whether they are."""
    rest = b""
    while data := file.read(BLOCK):
        data = rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            yield data[:end], False
    if rest:
        yield rest, True


def _decode(block: tuple[bytes, bool], wanted: tuple[str, ...], path: Path) -> tuple[Columns, int, bool]:
    """Columns, number of lines, and whether the last line was cut and left out."""
    data, last = block
    if last:  # no newline after it: the write was cut, unless it happens to be whole
        try:
            json.loads(data)
        except ValueError:
            return {name: np.empty(0, _dtype(name)) for name in wanted}, 0, True
        data += b"\n"
    try:
        columns = _decode_fixed(data, wanted)
    except ValueError:  # a value that no column holds: the parser says which
        columns = None
    if columns is None:
        columns = _decode_any(data, wanted, path)
    return columns, len(next(iter(columns.values()))), False


def _decode_fixed(data: bytes, wanted: tuple[str, ...]) -> Columns | None:
    """The columns where all lines have the same keys in the same order; None where they do not."""
    try:
        keys = list(json.loads(data[: data.index(b"\n")]))
    except (ValueError, TypeError):
        return None
    text = np.frombuffer(b"".join((_MARGIN, data, _MARGIN)), np.uint8)  # so that a window around a value is inside
    found = np.flatnonzero(text == _COLON)
    lines = np.count_nonzero(text == _NEWLINE)
    if not set(wanted) <= set(keys) or len(found) != lines * len(keys):
        return None
    colons = np.ascontiguousarray(found.reshape(lines, len(keys)).T)  # one row for each column
    ends = np.append(colons[0][1:] - (len(keys[0]) + 4), len(text) - len(_MARGIN) - 1)
    if (colons[1:] <= colons[:-1]).any() or (ends <= colons[-1]).any():
        return None
    if not ((text[ends] == _NEWLINE).all() and (text[ends - 1] == ord("}")).all()):
        return None
    gap = 1 if text[colons[0, 0] + 1] == ord(" ") else 0  # after colons and commas
    lengths = [len(k) for k in keys]
    for key, length, colon in zip(keys, lengths, colons, strict=True):
        places = [(1, _QUOTE), (2, ord(key[-1])), (1 + length, ord(key[0])), (2 + length, _QUOTE)]
        if not all((text[colon - back] == char).all() for back, char in places):
            return None
    columns: Columns = {}
    for name in wanted:
        at = keys.index(name)
        start, stop = colons[at] + 1 + gap, ends - 1
        if at + 1 < len(keys):
            stop = colons[at + 1] - (lengths[at + 1] + 3 + gap)
            if not (text[stop] == _COMMA).all():
                return None
        column = _digests(text, start, stop) if name == "digest" else _numbers(text, start, stop)
        if column is None:
            return None
        columns[name] = column
    return columns


def _digests(text: Array, start: Array, stop: Array) -> Array | None:
    """Texts of 16 characters in quotes, as numbers."""
    if not (stop - start == 18).all():
        return None
    halves = np.ndarray((len(text) - 15,), np.dtype("V16"), text, 0, (1,))[start + 1]
    return mix(halves.view(np.uint64).reshape(-1, 2))


def mix(halves: Array) -> Array:
    """One number for two: odd factors keep them apart."""
    with np.errstate(over="ignore"):
        mixed: Array = halves[:, 0] * np.uint64(0x9E3779B97F4A7C15) + halves[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F)
    return mixed


def _numbers(text: Array, start: Array, stop: Array) -> Array | None:
    """Numbers, null, booleans and quoted special values, as float64."""
    widths = stop - start
    width = int(widths.max())
    if width > len(_MARGIN) or widths.min() < 1:
        return None
    places = -(-width // GROUP) * GROUP
    chars = _windows(text, stop - places, places)  # (places, rows): the last character of each value in the last row
    shorter = (places - widths).astype(np.uint8)
    chars *= np.arange(places, dtype=np.uint8)[:, None] >= shorter
    if (chars == chars[:, :1]).all():
        return np.full(len(start), _value(chars[:, 0].tobytes().strip(b"\0")))
    negative = chars[shorter, np.arange(len(start))] == _MINUS
    if negative.any():
        chars[shorter[negative], np.flatnonzero(negative)] = 0
    dots = chars == _DOT
    digits = chars - np.uint8(48)
    is_digit = digits < 10
    odd = ~(is_digit | dots | (chars == 0)).all(axis=0) | ~is_digit.any(axis=0)
    digits *= is_digit
    mantissa, fraction, wide = _mantissa(digits, dots)
    odd |= wide
    with np.errstate(all="ignore"):
        if fraction.any():
            fraction[odd] = 0
            exact = mantissa.astype(np.longdouble) / _POWERS[fraction]
            values = exact.astype(np.float64)
            odd |= np.abs(exact - values) * 2 == np.spacing(values)  # rounded twice, it might come out one place off
        else:
            values = mantissa.astype(np.float64)
    values[negative] *= -1
    slow = np.flatnonzero(odd) if _EXACT else np.arange(len(start))
    if len(slow):
        values[slow] = _odd_values(text, start[slow], widths[slow])
    return values


def _windows(text: Array, start: Array, width: int) -> Array:
    """The `width` characters from each start on, shape (width, rows)."""
    whole = np.ndarray((len(text) - width + 1,), np.dtype(f"V{width}"), text, 0, (1,))
    return np.ascontiguousarray(whole[start].view(np.uint8).reshape(-1, width).T)


def _mantissa(digits: Array, dots: Array) -> tuple[Array, Array, Array]:
    """The number that a value's digits make without its point, how many digits stand after that, and where there are
    too many of them. Both arrays are (places, rows), with zeros for whatever is no digit."""
    count = digits.shape[1]
    total, wide = np.zeros(count, np.uint64), np.zeros(count, bool)
    for group in np.split(digits, len(digits) // GROUP):
        part = np.zeros(count, np.int32)
        for place in group:
            part *= 10
            part += place
        wide |= total >= 10**11  # else at most 19 digits, the point's place among them, which 64 bits hold
        total = total * np.uint64(10**GROUP) + part.astype(np.uint64)
    fraction = np.zeros(count, np.int8)
    for place in np.flatnonzero(dots.any(axis=1)):
        wide |= dots[place] & (fraction > 0)
        fraction[dots[place]] = len(digits) - 1 - place
    if fraction.any():  # take the zero out that stands in the point's place
        after = np.minimum(fraction, 18)
        whole, rest = np.divmod(total, _WHOLE[after + 1])
        pointed = (fraction > 0) & (fraction < 19)  # with more digits after the point there is nothing before it
        total = np.where(pointed, whole * _WHOLE[after] + rest, total)
    return total, fraction, wide | dots[-1] | (total >= 10**18) | (fraction >= len(_POWERS))


def _odd_values(text: Array, start: Array, widths: Array) -> Array:
    """Values one by one, for what is no plain decimal."""
    width = int(widths.max())
    chars = _windows(text, start, width)
    chars *= np.arange(width)[:, None] < widths
    texts = np.ascontiguousarray(chars.T).view(f"S{width}").ravel()
    try:
        return texts.astype(np.float64)
    except ValueError:
        return np.array([_value(t) for t in texts.tolist()])


def _value(text: bytes) -> float:
    """One value of a column as it stands in the file."""
    try:
        return float(text)
    except ValueError:
        return _plain(json.loads(text))


def _plain(value: Any) -> float:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise ValueError(f"{value!r} is no number")
        return _SPECIAL[value]
    return math.nan if value is None else float(value)


def _decode_any(data: bytes, wanted: tuple[str, ...], path: Path) -> Columns:
    """The columns of any JSON lines; a text column other than the digest is an error."""
    rows = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError
        except ValueError:
            raise RecordError(f"{path}: not a row: {line[:60]!r}") from None
        rows.append(row)
    return {name: _column(rows, name, path) for name in wanted}


def _column(rows: list[dict[str, Any]], name: str, path: Path) -> Array:
    try:
        if name == "digest":
            texts = np.array([str(r[name])[:16].ljust(16).encode("ascii", "replace") for r in rows], dtype="S16")
            return mix(texts.view(np.uint64).reshape(-1, 2))
        return np.array([_plain(r[name]) for r in rows], dtype=np.float64)
    except KeyError:
        raise RecordError(f"{path}: a row has no {name}; is this a file of another version?") from None
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: {name}: {error}") from None
