"""Every process's copy of the model: begun alike, checked to have stayed alike, and what cannot stay alike named.

Parameters are the same on all processes after every update. Buffers that training changes (BatchNorm's statistics, say)
follow each process's own micro-batches; rank 0's are evaluated and saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch
from torch import Tensor, nn

from runner.errors import TaskError
from runner.sync.local import local
from runner.world import World


@torch.no_grad()
def share(world: World, tensors: list[Tensor], device: torch.device | None = None) -> None:
    """Overwrite tensors of any format by those of rank 0: they are sent as bytes, which every library can, and from
    `device`, where they are not on one that the library knows."""
    if world.size == 1:
        return
    for tensor in tensors:
        whole = tensor.detach().to(device).contiguous()
        world.broadcast(whole.reshape(-1).view(torch.uint8))
        if whole.data_ptr() != tensor.data_ptr() and not torch.equal(whole, tensor):
            tensor.copy_(whole)


def check_alike(world: World, model: nn.Module, copy_size: int = 1) -> None:
    """Raises TaskError if the processes hold different weights: then something in an update depended on the rank.

    Where a copy of the model is spread over `copy_size` processes, those that hold the same share of it are compared.
    """
    if world.size == 1:
        return
    digest = blake2b(digest_size=8)
    for parameter in model.parameters():
        digest.update(local(parameter.detach()).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    found = world.gather(digest.hexdigest())
    if any(theirs != found[rank % copy_size] for rank, theirs in enumerate(found)):
        raise TaskError(
            f"the processes hold different weights ({', '.join(found)}): an update depended on the rank. "
            "Look for an optimizer or a task that draws from a generator of its own, or that asks for its rank"
        )


def statistics_note(model: nn.Module) -> tuple[str, ...]:
    """A note for the plan on BatchNorm and its like, which can be told before training."""
    kinds = sorted({type(m).__name__ for m in model.modules() if _has_statistics(m)})
    if not kinds:
        return ()
    return (
        f"{' and '.join(kinds)}: running statistics follow the micro-batches of each process, and those of rank 0 are evaluated "
        "and saved, so they depend on processes and accum; GroupNorm and LayerNorm have none",
    )


def _has_statistics(module: nn.Module) -> bool:
    return bool(getattr(module, "track_running_stats", False))


class Buffers:
    """The buffers of a model, watched from before its first forward in training."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._versions = {name: buffer._version for name, buffer in model.named_buffers()}

    def notes(self) -> tuple[str, ...]:
        """A note for the plan on the buffers that training has changed since, statistics apart; none if it changes none."""
        changed = self._changed()
        if not changed:
            return ()
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        return (
            f"training changes buffers of the model ({shown}). They follow the micro-batches of each process, and those of "
            "rank 0 are evaluated and saved, so they depend on processes and accum",
        )

    def _changed(self) -> list[str]:
        known = {id(b) for m in self._model.modules() if _has_statistics(m) for b in m.buffers(recurse=False)}
        return [
            name
            for name, buffer in self._model.named_buffers()
            if self._versions.get(name) != buffer._version and id(buffer) not in known
        ]

    @contextmanager
    def of_rank_zero(self, world: World) -> Iterator[None]:
        """All processes with the buffers of rank 0 for a while, and with their own again afterwards."""
        buffers, changed = list(self._model.buffers()), set(self._changed())
        own = [b.detach().clone() for b in buffers]
        share(world, buffers)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in zip(buffers, own, strict=True):
                    if not torch.equal(buffer, before):  # an expanded one, which is never written, cannot be copied to
                        buffer.copy_(before)
            for name, buffer in self._model.named_buffers():
                if name not in changed:  # what was done here is no change of training's
                    self._versions[name] = buffer._version
