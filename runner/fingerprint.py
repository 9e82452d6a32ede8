"""A short digest of a dataset: equal for equal data, whatever the process, the run or the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

ITEMS = 8  # how many items are looked at
DEPTH = 6  # how deep


def fingerprint(items: Any, count: int) -> str:
    """A digest of the number of items and of a few of them, spread evenly. `items[i]` gives one."""
    digest = blake2b(str(count).encode(), digest_size=8)
    for item in sorted({i * (count - 1) // (ITEMS - 1) for i in range(ITEMS)}) if count else ():
        for part in _parts(items[item], DEPTH):
            digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """What a value is made of. Of an object its fields, never its address; below `depth` only its type."""
    yield type(value).__name__.encode()
    if isinstance(value, torch.Tensor):
        whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        yield str(tuple(whole.shape)).encode()
        yield whole.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray | np.generic):
        yield str(value.shape).encode() + (value.tobytes() if value.dtype != object else b"")
    elif isinstance(value, bool | int | float | complex | str | bytes | None):
        yield repr(value).encode()
    elif depth:
        for key, part in _fields(value):
            yield key.encode()
            yield from _parts(part, depth - 1)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from sorted(((repr(k), v) for k, v in value.items()), key=lambda pair: pair[0])
    elif isinstance(value, set | frozenset):
        yield from sorted((repr(v), None) for v in value)
    elif isinstance(value, list | tuple):
        yield from ((str(i), v) for i, v in enumerate(value))
    else:
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        yield from ((name, getattr(value, name, None)) for name in sorted(map(str, names)))
