"""NVIDIA and AMD GPUs through torch.cuda: time by events on the stream, memory by the allocator's own peak."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Cuda:
    """One GPU, made the process's current device first, so that nothing is ever allocated on another one."""

    collectives = "nccl"
    reading_waits = True
    measuring_slows = False

    def __init__(self, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)
        self.device = torch.device("cuda", local_rank)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Between two marks that the device has reached: call it after the losses of that time were read."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def measuring(self, held: list[torch.Tensor]) -> AbstractContextManager[object]:
        """The allocator counts anyway, and knows what is held."""
        torch.cuda.reset_peak_memory_stats(self.device)
        return nullcontext()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)
