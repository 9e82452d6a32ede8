"""Tensors of which a process may hold a share only, and what can be asked of either kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runner.precision import is_shared


def local(tensor: Tensor) -> Tensor:
    """What this process holds of `tensor`, in the same memory."""
    return tensor.to_local() if is_shared(tensor) else tensor  # type: ignore[attr-defined]


def norm_of(tensors: list[Tensor]) -> Tensor:
    """The norm of all of them together."""
    return torch.nn.utils.get_total_norm(tensors)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of `model` on the CPU, unsharded, one tensor after another. All processes must ask for it together."""
    state = model.state_dict()
    return {k: (v.full_tensor() if is_shared(v) else v).cpu() for k, v in state.items()}


def optimizer_groups(parameters: list[nn.Parameter]) -> list[nn.Parameter] | list[dict[str, list[nn.Parameter]]]:
    """Parameters for an optimizer, which may take those of one group at once: shared and whole ones are not mixed."""
    shared = [p for p in parameters if is_shared(p)]
    whole = [p for p in parameters if not is_shared(p)]
    return [{"params": shared}, {"params": whole}] if shared and whole else parameters
