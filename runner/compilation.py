"""torch.compile for a model: once, for any number of items, with the draws of the model as it was written."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def compile_call(model: nn.Module, device: torch.device) -> None:
    """Compile what `model(...)` does, in place: its parameters, names and submodules stay what they are.

    Sizes are dynamic from the start, without most of the usual special cases (0, 1, sizes that happen to be equal), so
    that texts of another length need no graph of their own. Random draws stay those of the eager model, or a compiled run would be another experiment.
    """
    import torch._dynamo.config
    import torch._inductor.config
    import torch.fx.experimental._config as symbols

    symbols.backed_size_oblivious = True
    symbols.use_duck_shape = False  # equal sizes are not the same size
    torch._inductor.config.fallback_random = True
    torch._dynamo.config.optimize_ddp = False  # or graphs would be split where DDP happens to be active
    if device.type == "cpu":
        torch._inductor.config.compile_threads = 1  # in this process: helpers would outlive a killed one

    def call(*arguments: Any, **named: Any) -> Any:  # of our own: torch passes over frames of its own modules
        return nn.Module._call_impl(model, *arguments, **named)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, dynamic=True)


def uncompiled(wanted: bool) -> AbstractContextManager[object]:
    """Where `wanted`, compiled calls inside run as they were written: for a short micro-batch, which some
    operations would want a graph of its own for. That follows from its items alone, so it is the same on every setup."""
    return torch.compiler.set_stance("force_eager") if wanted else nullcontext()
