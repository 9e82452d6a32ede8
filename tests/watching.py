"""Notes, inside a rank, what an update did, independently of what the runner counts about itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch
import torch._dynamo.utils
import torch.distributed as dist

from runner import loop, worker
from runner.rundir import RunFolder
from runner.sync.local import local

READERS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__")


@contextmanager
def counting_reads() -> Iterator[list[str]]:
    """The names of the tensor methods that made the host wait for a value, one for each call made meanwhile."""
    found: list[str] = []
    before = {name: getattr(torch.Tensor, name) for name in READERS}

    def noted(name: str, plain: Any) -> Any:
        def method(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            found.append(name)
            return plain(self, *arguments, **named)

        return method

    for name, plain in before.items():
        setattr(torch.Tensor, name, noted(name, plain))
    try:
        yield found
    finally:
        for name, plain in before.items():
            setattr(torch.Tensor, name, plain)


def watch() -> None:
    """From now on, this rank writes a row for each update: `sequence` is the process group's own number of the
    collectives so far, `all_reduces` the calls of torch.distributed.all_reduce in this update, `reads` how often the host
    waited for a tensor's value, `weights` a digest of all parameters (or of its shares of them) after it, `lr` the rate of
    the next update, `kinds` the number formats of the gradients, `graphs` those that torch.compile has made so far."""
    calls, kinds, out = [0], set[str](), []
    plain_reduce, plain_update, plain_prepare = dist.all_reduce, loop.update, worker.prepare

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return plain_reduce(*arguments, **named)

    def prepare(plan: Any, folder: RunFolder, *rest: Any) -> Any:
        training = plain_prepare(plan, folder, *rest)
        out.append(folder.logs / f"watched-{training.rank}.jsonl")
        training.optimizer.register_step_pre_hook(lambda *_: kinds.update(_kinds(training)))
        return training

    def update(training: loop.Training, window: Any) -> None:
        before = calls[0]
        with counting_reads() as reads:
            plain_update(training, window)
        row = {
            "update": window.update,
            "all_reduces": calls[0] - before,
            "sequence": dist.group.WORLD._get_sequence_number_for_group() if dist.is_initialized() else 0,
            "reads": reads,
            "weights": _digest(training.parameters),
            "lr": training.schedule.lr,
            "kinds": sorted(kinds),
            "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        }
        with out[0].open("a") as file:
            print(json.dumps(row), file=file)

    dist.all_reduce, loop.update, worker.prepare = counted, update, prepare


def _kinds(training: loop.Training) -> set[str]:
    return {str(p.grad.dtype) for p in training.parameters if p.grad is not None}


def _digest(parameters: list[torch.nn.Parameter]) -> str:
    digest = blake2b(digest_size=8)
    for p in parameters:
        digest.update(local(p.detach()).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
