"""How much memory a device of this machine has for a process: what predicted peaks are held against."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from runner.choices import Device
from runner.counts import counted
from runner.errors import ConfigError, Problem
from runner.plan import Plan

_CGROUP = Path("/sys/fs/cgroup")


def capacity_of(plan: Plan) -> tuple[int, str]:
    """Bytes for one process, and where the number comes from. Raises ConfigError where nothing tells."""
    hardware = plan.config.hardware
    if hardware.memory is not None:
        return round(hardware.memory * 2**30), "hardware.memory"
    if hardware.device is Device.cuda:
        if not torch.cuda.is_available():
            what = "batch=auto_memory must know how much memory a device has, and this machine has no GPU to ask"
            raise ConfigError([Problem("hardware.memory", what, "Set hardware.memory=80 (GiB), say")])
        return torch.cuda.get_device_properties(0).total_memory, "the GPU's own"
    here = hardware.processes // hardware.nodes
    libraries = _resident()  # this process has loaded what each rank will have loaded
    left = _available() // here - libraries
    if left <= 0:
        what = f"the free memory of this machine is none for {counted(here, 'process')}, of which the libraries alone take {libraries / 2**30:.2f} GiB each"
        raise ConfigError([Problem("hardware", what, "Use fewer processes")])
    return left, (
        f"the free memory of this machine, divided by the {counted(here, 'process')} on it, "
        f"less {libraries / 2**30:.2f} GiB for libraries"
    )


def _available() -> int:
    """Bytes that the system can give away without swapping, within the limit of this process's group."""
    lines = Path("/proc/meminfo")
    if not lines.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = dict(line.split(":") for line in lines.read_text().splitlines())
    found = int(facts["MemAvailable"].split()[0]) * 1024
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        found = min(found, int(most) - int(used.read_text()))
    return found


def _resident() -> int:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0
