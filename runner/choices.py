"""What may be chosen, by name: the closed sets of the configuration."""

from __future__ import annotations

from enum import Enum


class Device(str, Enum):
    cpu = "cpu"
    cuda = "cuda"
    xla = "xla"


class Parallel(str, Enum):
    """ddp: every process holds the model; fsdp: each holds a share of it; hsdp: several copies, each shared."""

    ddp = "ddp"
    fsdp = "fsdp"
    hsdp = "hsdp"


class BatchMode(str, Enum):
    observed = "observed"
    per_device = "per_device"
    auto = "auto"
    auto_memory = "auto_memory"


class Remainder(str, Enum):
    """What becomes of an epoch's last, short window."""

    keep = "keep"
    drop = "drop"
    pad = "pad"


class SyncPolicy(str, Enum):
    accumulate = "accumulate"
    no_sync = "no_sync"
    every_batch = "every_batch"
    backward_only = "backward_only"
    accumulate_local = "accumulate_local"  # hsdp: inside a copy at every micro-batch, between copies once
    local_sgd = "local_sgd"  # every process makes its own updates, and the weights are averaged now and then

    @property
    def reduces_once(self) -> bool:
        """Whether a window's whole gradient is reduced, in its last micro-batch, and only there."""
        return self in (SyncPolicy.accumulate, SyncPolicy.no_sync)


class CompressName(str, Enum):
    """What gradients are sent as."""

    none = "none"
    bf16 = "bf16"
    fp16 = "fp16"
    powersgd = "powersgd"


class PrecisionName(str, Enum):
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"
    fp64 = "fp64"


class WeightFormat(str, Enum):
    bf16 = "bf16"


class SeedingMode(str, Enum):
    fast = "fast"
    exact = "exact"
    bitwise = "bitwise"


class ScalingRule(str, Enum):
    none = "none"
    linear = "linear"
    sqrt = "sqrt"


class NonFinite(str, Enum):
    stop = "stop"
    skip = "skip"


class StopMode(str, Enum):
    min = "min"
    max = "max"

    @property
    def sign(self) -> int:
        """What a value is multiplied by so that less is better."""
        return 1 if self is StopMode.min else -1


class TrackerMode(str, Enum):
    offline = "offline"
    online = "online"
    disabled = "disabled"
