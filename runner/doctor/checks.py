"""What of a machine is wrong, what is good to know: one finding each, with its cure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from runner.counts import counted
from runner.doctor.findings import Finding
from runner.doctor.machine import Machine

SHARED_MEMORY = 256 * 2**20  # bytes: containers often have 64 MiB, which two loader processes fill
OPEN_FILES = 1024
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def check(machine: Machine) -> Iterator[Finding]:
    """The findings on one machine by itself."""
    yield from _torch(machine)
    yield from _limits(machine)
    yield from _network(machine)
    if machine.compiler is None:
        cure = "Install g++ if you want that"
        yield Finding("there is no C++ compiler, without which compile=true does not work on a CPU", cure, wrong=False)
    if machine.namespaces is not None:
        what = f"this machine cannot be made into several nodes ({machine.namespaces})"
        yield Finding(what, "For link=350mbit and the like add link.simulate=true", wrong=False)
    if machine.synchronized is False:
        what = "nothing keeps this machine's clock right"
        yield Finding(what, "Start chronyd or systemd-timesyncd where several machines work together", wrong=False)


def _torch(machine: Machine) -> Iterator[Finding]:
    if machine.torch is None:
        yield Finding("torch is not installed here", "pip install samestep, in the environment of this python")
        return
    least, most = _range_of("torch")
    here = _numbers(machine.torch)
    if (least and here < least) or (most and here >= most):
        span = f"at least {_dotted(least)}" + (f" and below {_dotted(most)}" if most else "")
        what = f"torch {machine.torch} is none that samestep was made for ({span})"
        yield Finding(what, f'pip install "torch>={_dotted(least)}{f",<{_dotted(most)}" if most else ""}"')
    if machine.gpus and machine.torch_build == "cpu":
        what = f"{counted(machine.gpus, 'GPU')} {'is' if machine.gpus == 1 else 'are'} here, and torch {machine.torch} is a build without CUDA"
        yield Finding(what, "Install a build for CUDA, as pytorch.org names it")
    if machine.torch_build and machine.torch_build != "cpu" and not machine.gpus:
        what = f"torch is a build for {machine.torch_build}, and no GPU is visible"
        cure = "If there should be one, look at nvidia-smi and at CUDA_VISIBLE_DEVICES"
        yield Finding(what, cure, wrong=os.environ.get("CUDA_VISIBLE_DEVICES") is not None)


def _limits(machine: Machine) -> Iterator[Finding]:
    if machine.quota is not None and machine.quota < machine.cores:
        what = f"{counted(machine.cores, 'core')} can be seen, and {machine.quota:g} at a time may be used"
        cure = f"Give the container more, or set hardware.threads={max(1, int(machine.quota))} for one process"
        yield Finding(what, cure)
    if machine.memory_limit is not None and machine.memory and machine.memory_limit < machine.memory:
        what = f"of {machine.memory / 2**30:.1f} GiB memory {machine.memory_limit / 2**30:.1f} may be used"
        yield Finding(what, "Give the container more if runs are killed", wrong=False)
    if machine.shared_memory is not None and machine.shared_memory < SHARED_MEMORY:
        what = f"/dev/shm has {machine.shared_memory / 2**20:.0f} MiB, which loader processes fill (they end with a bus error)"
        yield Finding(what, "Start the container with --shm-size=8g, or leave data.workers at 0")
    if machine.open_files < OPEN_FILES:
        what = f"a process may have {machine.open_files} open files, which ranks and loaders use up"
        yield Finding(what, f"ulimit -n {4 * OPEN_FILES}")


def _network(machine: Machine) -> Iterator[Finding]:
    known = dict(machine.interfaces)
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable)
        names = [n for n in (value or "").lstrip("=^").split(",") if n]
        if value and not value.startswith("^") and not any(i.startswith(n) for n in names for i in known):
            what = f"{variable}={value}, and no interface of that name has an address (there are {', '.join(known)})"
            yield Finding(what, f"unset {variable}, or name one of those")
    if not [n for n in known if not n.startswith("lo")]:
        yield Finding(
            "there is no interface but loopback", "Connect the machine if it is to work with others", wrong=False
        )
    if machine.host_address is None or machine.host_address.startswith("127."):
        what = f"the name {machine.host} stands for {machine.host_address or 'no address'} here"
        others = [a for n, a in machine.interfaces if not n.startswith("lo")]
        cure = f"As rendezvous give an address that other machines reach{f', {others[0]} say' if others else ''}"
        yield Finding(what, cure, wrong=False)


def _range_of(package: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The versions of a package that Samestep asks for: the least, and the first that is too high; () where unknown."""
    try:
        wanted = next((r for r in requires("samestep") or () if re.match(rf"{package}\b", r)), "")
    except PackageNotFoundError:
        wanted = ""
    least, most = re.search(r">=\s*([\d.]+)", wanted), re.search(r"<\s*([\d.]+)", wanted)
    return (_numbers(least[1]) if least else ()), (_numbers(most[1]) if most else ())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.match(r"[\d.]*", text)[0].split(".")[:2] if n)  # type: ignore[index]


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
