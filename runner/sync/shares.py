"""Shares of a gradient in a wider format than the weights: reduced and summed in it, over processes and micro-batches.

fully_shard brings a reduced gradient back to the format of the weights, and adds up the micro-batches' there. Here it is
left in the format that it was reduced in; torch lets a parameter's gradient have another format since 2.10.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runner.errors import TaskError


def keep_wide(control: Any, wide: torch.dtype) -> None:
    """Make the parts of a model that `fully_shard` returned keep their gradients in `wide`."""
    state = control._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:  # one, before torch 2.12
        if group is None:
            continue
        group._init_mp_dtypes = partial(_left_wide, group, group._init_mp_dtypes, wide)
        for one in group.fsdp_params:
            if not hasattr(one.sharded_param, "grad_dtype"):
                raise TaskError(
                    f"precision.weights=bf16 under fsdp needs torch 2.10 or later, this is {torch.__version__}"
                )
            one.sharded_param.grad_dtype = None


def _left_wide(group: Any, plain: Any, wide: torch.dtype) -> None:
    """fully_shard's formats, as it finds them in its first forward; gradients are brought to that of `_orig_dtype`."""
    plain()
    group._orig_dtype = wide


class Beside:
    """The gradients of parameters that every process holds whole, summed beside them in `wide` as they come."""

    def __init__(self, parameters: list[nn.Parameter], wide: torch.dtype):
        self.parameters = parameters
        self._sums = [torch.zeros_like(p, dtype=wide) for p in parameters]
        for parameter, total in zip(parameters, self._sums, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(_add, total))  # type: ignore[no-untyped-call]

    def take(self) -> list[Tensor]:
        """The sums since the last call."""
        taken = [total.clone() for total in self._sums]
        for total in self._sums:
            total.zero_()
        return taken


def _add(total: Tensor, parameter: Tensor) -> None:
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None
