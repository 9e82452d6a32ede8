"""Whose the memory is: a meter that keeps one account for each part of a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group

from runner.backend.meter import Meter
from runner.sync.local import local

WEIGHTS, OPTIMIZER, GRADIENTS = "weights", "optimizer", "gradients"
WHOLE, GATHERED, COMMUNICATION = "gradients, unsharded", "weights, gathered", "communication buffers"
ACTIVATIONS = "activations and what is being computed"


class Ledger(Meter):  # type: ignore[no-untyped-call]
    """`at_peak` is what each part held when most was held. What is made belongs to `label`, until it is `moved`."""

    def __init__(self) -> None:
        super().__init__((FakeTensor, torch.nn.Parameter))
        self.label = ACTIVATIONS
        self.at_peak: dict[str, int] = {}
        self._now: Counter[str] = Counter()
        self._labels: dict[int, str] = {}

    def enter(self, tensors: Iterable[Tensor], label: str) -> None:
        """Count `tensors` as `label`."""
        with self.labelled(label):
            self.hold(tensors)

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def move(self, tensor: Tensor | None, label: str) -> None:
        """What `tensor` holds belongs to `label` now."""
        if tensor is None:
            return
        key = local(tensor).untyped_storage()._cdata
        if key in self._held and self._labels[key] != label:
            size = self._held[key][1]
            self._now[self._labels[key]] -= size
            self._now[label] += size
            self._labels[key] = label

    def _add(self, key: int, size: int) -> None:
        self._now[self._labels.setdefault(key, self.label)] += size
        higher = self.current + size > self.peak
        super()._add(key, size)
        if higher:
            self.at_peak = {label: n for label, n in self._now.items() if n}

    def _forget(self, key: int) -> None:
        super()._forget(key)
        del self._labels[key]


@contextmanager
def told_apart(ledger: Ledger) -> Iterator[None]:
    """While fully_shard's steps are told apart: its buffers, the weights that it gathers, the gradients before and after."""
    group, parameter = _fsdp_param_group.FSDPParamGroup, _fsdp_param.FSDPParam

    def labelling(plain: Callable[..., Any], label: str) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            with ledger.labelled(label):
                return plain(*arguments, **named)

        return step

    plain_backward = group.post_backward

    def post_backward(self: Any, *unused: Any) -> None:
        for one in self.fsdp_params:
            ledger.move(one.unsharded_accumulated_grad, WHOLE)
            ledger.move(getattr(getattr(one, "_unsharded_param", None), "grad", None), WHOLE)
        plain_backward(self, *unused)
        for one in self.fsdp_params:
            ledger.move(one.unsharded_accumulated_grad, WHOLE)  # just made, where sums are wider than the weights
            ledger.move(one.sharded_param.grad, GRADIENTS)

    with ExitStack() as steps:
        allocator = _fsdp_collectives.DefaultAllocMixin
        for owner, name, label in (
            (allocator, "allocate", COMMUNICATION),
            (parameter, "init_all_gather_outputs", GATHERED),
            (parameter, "alloc_all_gather_outputs", GATHERED),
        ):
            steps.enter_context(patch.object(owner, name, labelling(getattr(owner, name), label)))
        steps.enter_context(patch.object(group, "post_backward", post_backward))
        yield
