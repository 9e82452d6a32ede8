"""Which parts of a model are sharded by themselves: gathered when their turn comes, and let go right after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from runner.errors import TaskError
from runner.task import Adopted


def blocks_of(task: Adopted, model: nn.Module) -> list[nn.Module]:
    """Those that the task names, or else the repeated ones. Raises TaskError for one that is no part of the model."""
    named = task.shard(model)
    if named is None:
        return list(_repeated(model, model, _uses(model)))
    inside = {id(m) for m in model.modules()} - {id(model)}
    for block in named:
        if id(block) not in inside:
            raise TaskError(f"{task.name}.shard returned a {type(block).__name__} that is no part inside the model")
    return list(named)


def checkpoint_blocks(task: Adopted, model: nn.Module) -> None:
    """Keep no activations inside the blocks: they are computed again in the backward, with the same random draws.
    Raises TaskError if there are no blocks."""
    blocks = blocks_of(task, model)
    if not blocks:
        raise TaskError(
            f"activation_checkpoint=true: the model of {task.name} has no repeated parts. Name some by the task's shard(model)"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _repeated(model: nn.Module, module: nn.Module, uses: Counter[int]) -> Iterator[nn.Module]:
    """The outermost children of a ModuleList or Sequential whose class occurs there more than once, and whose
    parameters no other part of the model uses."""
    children = list(module.children())
    kinds = Counter(type(c) for c in children) if isinstance(module, nn.ModuleList | nn.Sequential) else Counter()
    for child in children:
        inside = _uses(child)
        if kinds[type(child)] > 1 and inside and all(uses[p] == n for p, n in inside.items()):
            yield child
        else:
            yield from _repeated(model, child, uses)


def _uses(module: nn.Module) -> Counter[int]:
    """How many places in `module` hold each parameter that can be sharded."""
    places = (m for _, m in module.named_modules(remove_duplicate=False))
    return Counter(id(p) for m in places for p in m._parameters.values() if p is not None and p.ndim)
