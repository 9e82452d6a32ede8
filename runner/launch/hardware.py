"""Does this machine have what a plan asks for? Looked up without torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from runner.choices import Device, SeedingMode
from runner.counts import counted
from runner.errors import ConfigError, Problem
from runner.link.emulated import shape_of, why_not
from runner.plan import Plan

COMPILERS = (os.environ.get("CXX", ""), "g++", "clang++")


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    """GPUs that a process started here would see: those the driver shows, less those that are hidden."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not present:
        present = len(
            [p for p in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id") if p.read_text().strip() != "0"]
        )
    if visible is None or not present:
        return present
    chosen = [v for v in visible.split(",") if v.strip() and v.strip() != "-1"]
    return min(present, len(chosen))


def threads_of(plan: Plan) -> int:
    """Threads of one process: as configured, or the machine's cores divided by the processes on it; one where the
    last bits must not depend on the processes."""
    hardware = plan.config.hardware
    if plan.config.seeding.mode is SeedingMode.bitwise:
        return hardware.threads or 1
    here = hardware.processes if plan.config.link.chosen else hardware.processes // hardware.nodes
    return hardware.threads or max(1, cores() // here)


def cores_of(plan: Plan, rank: int) -> list[int]:
    """The cores that a process is kept on, where nodes share this machine and there are enough: otherwise the processes of
    one node would take turns with those of another, which real ones do not. Empty: any."""
    processes = plan.config.hardware.processes
    if not plan.config.link.chosen or not hasattr(os, "sched_getaffinity"):
        return []
    each = cores() // processes
    return sorted(os.sched_getaffinity(0))[rank * each : (rank + 1) * each]


def check_hardware(plan: Plan) -> None:
    """Raises ConfigError, in one line, if this machine cannot run the plan: what it has, and what would run."""
    hardware = plan.config.hardware
    wanted, nodes = hardware.processes // hardware.nodes, hardware.nodes
    here = f"this machine has {counted(gpus(), 'GPU')} and {counted(cores(), 'CPU core')}"
    if plan.config.compile and hardware.device is Device.cpu and not any(map(shutil.which, COMPILERS)):
        what = (
            f"torch.compile needs a C++ compiler on the CPU, and none of {', '.join(filter(None, COMPILERS))} is here"
        )
        raise ConfigError([Problem("compile", what, "Install one, or use compile=false")])
    if nodes > 1 and plan.config.rendezvous is None and not plan.config.link.chosen:
        what = f"{nodes} nodes were asked for, but one command starts processes on this machine only"
        fix = (
            "Add node.rank=0 rendezvous=HOST:PORT here, with an address of this machine, and type node.rank=1 rendezvous=HOST:PORT on "
            f"the next one; under Slurm, srun or launch=slurm does that; on this machine alone link=350mbit makes the nodes, and hardware={_choice(hardware.processes, 'cpu')} would run"
        )
        raise ConfigError([Problem("rendezvous", what, fix, unless=("link",))])
    if plan.config.link.chosen and hardware.device is not Device.cpu:
        what = f"{plan.config.link.name} would join processes on CPUs; those of {hardware.device.value} reach each other past it"
        raise ConfigError([Problem("link", what, "It can be planned. To run, use hardware=2node, or link=none")])
    shape = shape_of(plan)
    if shape is not None and (why := why_not(shape)):
        what = f"link={plan.config.link.name} needs a network namespace for each node: {why}"
        raise ConfigError([Problem("hardware", what, "With link.simulate=true reductions are late instead")])
    if hardware.device is Device.cuda and gpus() < wanted:
        what = f"{counted(wanted, 'GPU')} {'was' if wanted == 1 else 'were'} asked for, but {here}"
        alternative = (
            f"hardware={_choice(gpus(), 'gpu')} would run" if gpus() else f"hardware={_choice(wanted, 'cpu')} would run"
        )
        raise ConfigError([Problem("hardware", what, alternative)])
    if hardware.device is Device.xla:
        why = (
            "is not supported yet"
            if importlib.util.find_spec("torch_xla")
            else "needs torch-xla, which is not installed"
        )
        raise ConfigError([Problem("hardware", f"a TPU {why}; {here}", f"hardware={_choice(wanted, 'cpu')} would run")])


def _choice(count: int, kind: str) -> str:
    return kind if count == 1 else f"{count}{kind}"
