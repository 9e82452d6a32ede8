"""Reading what trackers have written, without the project's code: wandb's offline files, TensorBoard's, MLflow's.

wandb has no reader of its own for a run that was never uploaded. Its file is a log in LevelDB's format: blocks of 32 KiB,
in them chunks of (checksum, size, kind, body), and the bodies of a record's chunks put together are a protobuf message.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32768
FULL, LAST = 1, 4  # kinds of a chunk that ends its record


@dataclass
class WandbRun:
    """A run as its offline file tells it. `exit_code` is None where the run was never finished."""

    id: str = ""
    group: str = ""
    job_type: str = ""
    project: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)  # pattern of names: the column that it is drawn over
    exit_code: int | None = None

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows that hold values named `kind/...`, with plain names; the counters stand under `batch` and `update`."""
        found = [r for r in self.history if any(name.startswith(f"{kind}/") for name in r)]
        return [{n.removeprefix(f"{kind}/"): v for n, v in r.items() if not n.startswith("_")} for r in found]


def wandb_run(run: Path) -> WandbRun:
    """The only wandb run in a run's folder."""
    (file,) = run.glob("wandb/*/*.wandb")
    return read_wandb(file)


def read_wandb(file: Path) -> WandbRun:
    """What an offline file holds, up to its end or to where it was cut."""
    found = WandbRun()
    for record in _records(file.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found.history.append({_key(i): json.loads(i.value_json) for i in record.history.item})
        elif kind == "metric" and record.metric.glob_name:
            found.axes[record.metric.glob_name] = record.metric.step_metric
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
        elif kind == "run":
            run = record.run
            found.id, found.group, found.job_type, found.project = run.run_id, run.run_group, run.job_type, run.project
            found.name = run.display_name
        if kind in ("run", "config"):
            config = record.run.config if kind == "run" else record.config
            found.config.update({_key(i): json.loads(i.value_json) for i in config.update})
    return found


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B", "not an offline file of wandb"
    at, body = 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:  # too little for a chunk: the rest of a block is empty
            at += left
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        chunk = data[at + 7 : at + 7 + size]
        if len(chunk) < size or (kind == 0 and size == 0):
            return
        assert zlib.crc32(bytes([kind]) + chunk) == checksum, f"a wrong checksum at byte {at}"
        at, body = at + 7 + size, body + chunk
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(body)
            body = b""
            yield record


def tensorboard_curves(run: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    """The curves of the only event file in a run's folder as (step, value), and its texts."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    (file,) = run.glob("tensorboard/*")
    curves: dict[str, list[tuple[int, float]]] = {}
    texts: dict[str, str] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            array = make_ndarray(value.tensor)
            if array.dtype.kind in "OS":
                texts[value.tag] = array.ravel()[0].decode()
            else:
                curves.setdefault(value.tag, []).append((event.step, float(array.ravel()[0])))
    return curves, texts
