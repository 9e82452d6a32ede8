"""The number formats of a run: gradient sums in fp32 (fp64 where asked), weights too if not told otherwise, the forward by autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from runner.choices import PrecisionName, WeightFormat
from runner.schema import Config


def is_shared(tensor: Tensor) -> bool:
    """Whether `tensor` is spread over processes (a DTensor, whose class costs a second to import)."""
    return hasattr(tensor, "to_local")


class Precision:
    """What `precision=` chose, on a kind of device (`cpu`, `cuda`)."""

    def __init__(self, name: PrecisionName, device_type: str, weights: WeightFormat | None = None):
        self.name, self._device_type = name, device_type
        self.sums = torch.float64 if name is PrecisionName.fp64 else torch.float32  # of gradients and losses
        self.weights = torch.bfloat16 if weights is WeightFormat.bf16 else self.sums
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
        if self.name is PrecisionName.fp16:
            return torch.autocast(self._device_type, dtype=torch.float16)
        return nullcontext()


class Scaler:
    """The loss scale of fp16, by torch's GradScaler; for any other format nothing.

    A window goes through `scale` (every loss), `unscale` (once its gradients are whole, so that all processes see the
    same ones and decide alike) and `update`. `overflow` is then 1 where a gradient is no number, else 0, and
    `value` the scale that the window was computed with; both are None without a scale, and stay on the device.
    Where a process holds shares of the gradients only, `agree` makes of its own finding the worst of all.
    """

    def __init__(
        self, config: Config, device: torch.device, parameters: list[nn.Parameter],
        agree: Callable[[Tensor], Tensor] = lambda found: found,
    ):  # fmt: skip
        self._agree, self._parameters = agree, parameters
        self._shared = any(is_shared(p) for p in parameters)
        self.overflow: Tensor | None = None
        self.value: Tensor | None = None
        self._one = torch.ones((), device=device)
        # torch wants an optimizer, for what it holds; this one holds all parameters, also those that have none
        self._optimizer: Any = SimpleNamespace(param_groups=[{"params": parameters}])
        self._torch: torch.amp.GradScaler | None = None
        if config.precision.name is PrecisionName.fp16:
            assert config.precision.scale is not None and config.precision.growth_interval is not None
            self._torch = torch.amp.GradScaler(
                device.type, init_scale=config.precision.scale, growth_interval=config.precision.growth_interval
            )

    def scale(self, total: Tensor) -> Tensor:
        return total if self._torch is None else self._torch.scale(total)

    def unscale(self) -> None:
        if self._torch is None:
            return
        self.value = self._torch.scale(self._one)
        if self._shared:
            self._optimizer.param_groups[0]["params"] = [_share(p) for p in self._parameters]
        self._torch.unscale_(self._optimizer)
        found = self._torch._found_inf_per_device(self._optimizer).values()
        self.overflow = self._agree(torch.stack([f.reshape(()).to(self._one.device) for f in found]).amax())
        for one in found:
            one.fill_(self.overflow)  # what torch lowers the scale by

    def update(self) -> None:
        """Lower the scale after an overflow, raise it after long enough without one."""
        if self._torch is not None:
            self._torch.update()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._torch is None else self._torch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._torch is not None:
            self._torch.load_state_dict(state)


def _share(parameter: nn.Parameter) -> Tensor:
    """What this process holds of a parameter, with what it holds of its gradient, in the same memory."""
    found: Any = parameter.detach()
    gradient: Any = parameter.grad
    if is_shared(found):
        found, gradient = found.to_local(), gradient.to_local()
    found.grad = gradient
    return found  # type: ignore[no-any-return]
