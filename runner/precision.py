"""The number formats of a run: weights and gradient sums in fp32 (fp64 where asked), the forward by autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from runner.schema import PrecisionName


class Precision:
    """What `precision=` chose, on a kind of device (`cpu`, `cuda`)."""

    def __init__(self, name: PrecisionName, device_type: str):
        self.name, self._device_type = name, device_type
        self.weights = torch.float64 if name is PrecisionName.fp64 else torch.float32
        if device_type == "cuda":
            allowed = name is PrecisionName.tf32
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.backends.cudnn.allow_tf32 = allowed

    @property
    def casts_inputs(self) -> bool:
        """Whether floating-point inputs must be brought to the weights' format."""
        return self.name is PrecisionName.fp64

    def apply(self, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """The model on a device with its numbers in the weights' format: complex ones stay complex, integers as they are."""
        wide = torch.complex128 if self.weights is torch.float64 else torch.complex64

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            wanted = self.weights if tensor.is_floating_point() else wide if tensor.is_complex() else tensor.dtype
            return tensor.to(device, wanted)

        converted: torch.nn.Module = model._apply(convert)  # type: ignore[no-untyped-call]
        return converted

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.name is PrecisionName.bf16:
            return torch.autocast(self._device_type, dtype=torch.bfloat16)
        return nullcontext()
