"""What this machine has, looked up without loading torch: it takes a tenth of a second."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runner.counts import counted
from runner.launch.hardware import COMPILERS, cores, gpus
from runner.launch.network import addresses
from runner.link.emulated import why_not
from runner.link.shaping import Shape

_UNSYNCHRONIZED = 5  # what adjtimex(2) returns then
_LIMITLESS = 1 << 60  # bytes: what a group of processes without a limit is shown as having, or more


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes, None for what there is none of or what cannot be told."""

    host: str
    system: str
    python: str
    samestep: str | None
    torch: str | None
    torch_build: str | None  # cpu, cuda 12.8, ...
    cores: int
    quota: float | None  # cores that the group of this process may use at a time
    memory: int | None
    memory_limit: int | None  # of the group of this process
    gpus: int
    driver: str | None
    compiler: str | None
    interfaces: tuple[tuple[str, str], ...]  # name, address
    host_address: str | None  # that the machine's own name stands for
    shared_memory: int | None  # free in /dev/shm
    open_files: int
    processes: int | None
    time_zone: str
    synchronized: bool | None  # whether the system says that its clock is
    namespaces: str | None  # why nodes cannot be made here (link=...); None where they can

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look() -> Machine:
    """This machine, now."""
    return Machine(
        host=os.uname().nodename,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        samestep=_version("samestep"),
        torch=_version("torch"),
        torch_build=_torch_build(),
        cores=cores(),
        quota=_quota(),
        memory=_memory(),
        memory_limit=_memory_limit(),
        gpus=gpus(),
        driver=_driver(),
        compiler=next((c for c in map(shutil.which, filter(None, COMPILERS)) if c), None),
        interfaces=tuple(addresses()),
        host_address=_host_address(),
        shared_memory=_shared_memory(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=_unlimited(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        time_zone=time.strftime("%Z %z"),
        synchronized=_synchronized(),
        namespaces=why_not(Shape(2, 350.0)),
    )


def lines(machine: Machine) -> list[str]:
    """The machine in a few lines."""
    build = f" ({machine.torch_build} build)" if machine.torch_build else ""
    quota = f", of which {machine.quota:g} at a time" if machine.quota is not None else ""
    shm = f", /dev/shm {_gib(machine.shared_memory)}" if machine.shared_memory is not None else ""
    links = ", ".join(f"{name} {address}" for name, address in machine.interfaces) or "none"
    return [
        f"{machine.host}: {machine.system}, python {machine.python}, torch {machine.torch or 'missing'}{build}, "
        f"samestep {machine.samestep or 'not installed'}",
        f"{counted(machine.cores, 'CPU core')}{quota}, {_gib(machine.memory)} of memory{shm}, {counted(machine.gpus, 'GPU') if machine.gpus else 'no GPUs'}"
        + (f" (driver {machine.driver})" if machine.driver else ""),
        f"interfaces: {links}; the name {machine.host} stands for {machine.host_address or 'nothing'}",
        f"compiler {machine.compiler or 'none'}; {machine.open_files} open files; "
        f"nodes on this machine (link=...) {'can' if machine.namespaces is None else 'cannot'} be made",
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {machine.time_zone}, clock {_clock(machine.synchronized)}",
    ]


def _clock(synchronized: bool | None) -> str:
    return {True: "synchronized", False: "not synchronized", None: "synchronized or not: unknown"}[synchronized]


def _gib(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / 2**30:.1f} GiB"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch_build() -> str | None:
    """What torch was built for, read from its own file rather than by loading it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    for kind in ("cuda", "hip", "xpu"):
        if match := re.search(rf"^{kind}[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE):
            return f"{kind} {match[1]}"
    return "cpu"


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _quota() -> float | None:
    """Cores at a time that the kernel grants the group of this process."""
    if text := _text("/sys/fs/cgroup/cpu.max"):
        most, _, period = text.partition(" ")
        return None if most == "max" or not period else int(most) / int(period)
    granted, each = _text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(granted) / int(each) if granted and each and int(granted) > 0 else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _memory_limit() -> int | None:
    text = _text("/sys/fs/cgroup/memory.max") or _text("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return _unlimited(int(text)) if text and text.isdigit() else None


def _unlimited(value: int) -> int | None:
    return None if value < 0 or value >= _LIMITLESS else value


def _driver() -> str | None:
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+[.\d]*)", _text("/proc/driver/nvidia/version") or "")
    return match[1] if match else None


def _host_address() -> str | None:
    try:
        return socket.gethostbyname(os.uname().nodename)
    except OSError:
        return None


def _shared_memory() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def _synchronized() -> bool | None:
    """Whether the system's clock follows a source of time, as the kernel tells it."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    state = library.adjtimex(ctypes.create_string_buffer(512))  # a struct timex with modes 0: only read
    return None if state < 0 else state != _UNSYNCHRONIZED
