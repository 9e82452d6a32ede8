"""Random streams: what is drawn depends on the seed and on what it is drawn for, not on who draws it.

`exact` and `bitwise`: every micro-batch's forward starts its own stream, from (seed, update, micro-batch); every item its own,
from (seed, epoch, item). `fast`: one stream per process. Each covers python's `random`, numpy, torch on the CPU and on the device.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runner.keys import derive


def seed_generators(key: int, device: torch.device | None = None) -> None:
    """Start all generators of this process from `key`.

    The default generators are seeded directly: `torch.manual_seed` takes a millisecond where a backend
    has not been started yet.
    """
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if device is not None and device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(key)


def use_deterministic_kernels() -> None:
    """Of every operation the form that gives the same bits each time. One that has none raises RuntimeError."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # ours is never read before it is written
    torch.backends.cudnn.benchmark = False


class Streams:
    """The streams of one process. `exact` is what `seeding=` chose; `unknown_optimizer` says that the optimizer is not
    torch's own, so that it may draw numbers."""

    def __init__(self, seed: int, exact: bool, rank: int, device: torch.device, unknown_optimizer: bool = False):
        self.seed, self.exact, self._device, self._unknown_optimizer = seed, exact, device, unknown_optimizer
        self.model_draws: bool | None = (
            None  # whether the last micro-batch of the first window drew numbers; None: unknown
        )
        self._begun: _States | None = None
        if not exact:
            seed_generators(derive(seed, "process", rank), device)

    def micro_batch(self, update: int, index: int) -> None:
        """Start the stream of a micro-batch's forward and backward."""
        if self.exact:
            seed_generators(derive(self.seed, "micro-batch", update, index), self._device)
            if update == 1:
                self._begun = _States.now()

    def update(self, update: int) -> AbstractContextManager[None]:
        """The stream of an optimizer that draws numbers: the same on every process, or their weights would part."""
        if self.exact:
            if update == 1 and self._begun is not None:
                self.model_draws = not self._begun.same(_States.now())
            seed_generators(derive(self.seed, "update", update), self._device)
            return nullcontext()
        return self.aside("update", update) if self._unknown_optimizer else nullcontext()

    @contextmanager
    def aside(self, purpose: str, *parts: int) -> Iterator[None]:
        """A stream of its own for something beside training, which goes on afterwards as if nothing had been drawn."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        seed_generators(derive(self.seed, purpose, *parts), self._device)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, self._device)


@dataclass(frozen=True, slots=True)
class _States:
    """Where the generators on the CPU are."""

    python: object
    numpy: tuple[bytes, int]
    torch: torch.Tensor

    @classmethod
    def now(cls) -> _States:
        state: Any = np.random.get_state(legacy=True)  # (name, key, position, ...)
        return cls(random.getstate(), (state[1].tobytes(), state[2]), torch.get_rng_state())

    def same(self, other: _States) -> bool:
        return (self.python, self.numpy) == (other.python, other.numpy) and torch.equal(self.torch, other.torch)
