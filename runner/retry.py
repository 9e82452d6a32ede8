"""A window that runs out of memory is repeated from its start, in micro-batches of half the size, on all processes.

No weight was changed yet, the items are the same, and every random stream belongs to its micro-batch; so what has to be put
back are buffers that the forward changes. Only the update itself cannot be repeated: an error there ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runner.errors import TaskError
from runner.plan import VOTE_BYTES
from runner.window import Window, divisors
from runner.world import World

Batches = Generator[Any, None, None]

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that there was no memory left, on a device or in the process."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


class Retry:
    """The size of the micro-batches of a run, and how all processes come to agree on a smaller one.

    `reload(window, per_device, accum)` opens this process's batches anew from `window` on; `tell` is given a line for the
    run's notes, the update and the size from there on. `collectives` and `bytes` count what the votes have sent.
    """

    def __init__(
        self, size: tuple[int, int], world: World, device: torch.device, model: nn.Module,
        reload: Callable[[int, int, int], Batches], tell: Callable[[str, int, int], None],
    ):  # fmt: skip
        self.collectives = self.bytes = 0
        self._per_device, self._accum = size
        self._world, self._device, self._model = world, device, model
        self._reload, self._tell = reload, tell
        self._buffers: list[Tensor] = []

    def begin(self, window: Window) -> Window:
        """The window as it is cut now, about to be computed."""
        self._buffers = [b.detach().clone() for b in self._model.buffers()]
        return replace(window, per_device=self._per_device, accum=self._accum)

    def needed(self, failed: bool) -> bool:
        """Whether any process `failed`. All must ask, after their reduction: a process that still waited there would
        not hear. The host waits for the answer, as the update must not begin before it is known."""
        if self._world.size > 1:
            self.collectives += 1
            self.bytes += VOTE_BYTES
        return self._world.any(failed, self._device)

    def smaller(self, window: Window) -> Batches:
        """Put back what the window has changed, and halve its micro-batches. Returns its batches and all later ones.

        Raises TaskError where nothing is left to be halved.
        """
        before = self._per_device
        if before == 1:
            raise TaskError(
                f"update {window.update} ran out of memory with a single item on each device. activation_checkpoint=true needs "
                "less, and so does hardware.parallel=fsdp on several devices"
            )
        self._per_device = max(n for n in divisors(before * self._accum) if n <= before / 2)
        self._accum = before * self._accum // self._per_device
        self._tell(
            f"out of memory at update {window.update}: it was repeated with per_device={self._per_device} and "
            f"accum={self._accum} in place of {before} and {window.accum}, and so are all that follow; random draws inside "
            "the model are others from there on",
            window.update,
            self._per_device,
        )
        with torch.no_grad():
            for buffer, saved in zip(self._model.buffers(), self._buffers, strict=True):
                if not torch.equal(buffer, saved):  # an untouched one must not look touched
                    buffer.copy_(saved)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # pieces of the old sizes would stand in the way of the new ones
        return self._reload(window.update, self._per_device, self._accum)
