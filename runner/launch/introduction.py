"""Who a node is, and whether it may take part: the same versions everywhere, and one set of settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runner.launch.hardware import cores, gpus

VERSIONS = ("samestep", "torch", "python", "code")  # what must be the same on all nodes


def introduction(rank: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Who this node is, and what it runs."""
    return {
        "rank": rank,
        "host": os.uname().nodename,
        "arguments": sorted(arguments),
        "samestep": _version("samestep"),
        "torch": _version("torch"),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "code": _code(),
        "cores": cores(),
        "gpus": gpus(),
    }


def difference(first: dict[str, Any], other: dict[str, Any]) -> str | None:
    """What keeps a node from taking part: another version, or other settings than the first node's; None if nothing does."""
    for name in VERSIONS:
        if first[name] != other.get(name):
            what = "another version of Samestep's code" if name == "code" else f"{name} {other.get(name)}"
            here = "" if name == "code" else f", the first node {first[name]}"
            return f"it has {what}{here}. Install the same on all nodes"
    if other["arguments"] and other["arguments"] != first["arguments"]:
        mine, theirs = " ".join(first["arguments"]) or "none", " ".join(other["arguments"])
        return f"it was started with other settings ({theirs}) than the first node ({mine}). The first node's hold for all: leave them out"
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _code() -> str:
    """A digest of Samestep's own source."""
    root = Path(__file__).parents[1]
    seen = blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        seen.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return seen.hexdigest()
