"""The device of a process: where tensors live, how time and memory are read."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch

from runner.choices import Device


class Backend(Protocol):
    """One process's device. A mark is a point in time on it; marks are compared once the device got there."""

    device: torch.device
    collectives: str  # the process group's library
    reading_waits: bool  # whether reading a value waits for work that was queued
    measuring_slows: bool  # whether measuring memory takes time

    def mark(self) -> Any: ...
    def seconds(self, start: Any, end: Any) -> float: ...

    def measuring(self, held: list[torch.Tensor]) -> AbstractContextManager[object]:
        """While peak memory is measured, from a new start. `held` is there before: weights, optimizer state."""

    def peak_memory(self) -> int:
        """The most bytes that tensors have held since the last measurement began."""


def open_backend(device: Device, local_rank: int) -> Backend:
    """The device of the process `local_rank` of this machine."""
    if device is Device.cuda:
        from runner.backend.cuda import Cuda

        return Cuda(local_rank)
    from runner.backend.cpu import Cpu

    return Cpu()


def to_device(batch: Any, device: torch.device, floats: torch.dtype | None) -> Any:
    """A batch, however nested, on a device; floating-point tensors in the format `floats` if one is given."""
    if isinstance(batch, torch.Tensor):
        wanted = floats if batch.is_floating_point() else torch.complex128 if floats and batch.is_complex() else None
        return batch.to(device, wanted, non_blocking=True)
    if isinstance(batch, MutableMapping):
        moved = copy(batch)
        moved.update({k: to_device(v, device, floats) for k, v in batch.items()})
        return moved
    if is_dataclass(batch) and not isinstance(batch, type):
        changes = {f.name: to_device(getattr(batch, f.name), device, floats) for f in fields(batch) if f.init}
        return replace(batch, **changes)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(v, device, floats) for v in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(v, device, floats) for v in batch)
    return batch.to(device) if hasattr(batch, "to") else batch
