"""Two machines on this one: network namespaces joined by a cable, and commands started in them.

The namespaces have no name: each lives as long as the process that holds it, so nothing outlives a test.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.commands import PROJECT, Command

CABLE = "cable0"


@dataclass(frozen=True)
class Machine:
    """One of them, and how to do something there."""

    number: int
    holder: int  # the process that keeps its namespace

    @property
    def address(self) -> str:
        return f"192.0.2.{self.number + 1}"

    def enter(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.holder), "-n", *command]

    def do(self, *command: str) -> None:
        subprocess.run(self.enter(*command), check=True, capture_output=True, timeout=20)

    def unplug(self) -> None:
        self.do("ip", "link", "set", CABLE, "down")

    def plug(self) -> None:
        self.do("ip", "link", "set", CABLE, "up")


@cache
def why_not() -> str:
    """Why there can be no such machines here; empty where there can."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    done = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"],
        capture_output=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"no network namespaces: {done.stderr.decode().strip()}"


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Both, with the cable plugged in."""
    holders = [subprocess.Popen(["unshare", "-n", "sleep", "600"]) for _ in range(2)]
    try:
        machines = tuple(Machine(n, h.pid) for n, h in enumerate(holders))
        for machine in machines:
            _wait_for_namespace(machine.holder)
        pair = ["ip", "link", "add", CABLE, "netns", str(holders[0].pid), "type", "veth"]
        subprocess.run([*pair, "peer", "name", CABLE, "netns", str(holders[1].pid)], check=True, timeout=20)
        for machine in machines:
            machine.do("ip", "addr", "add", f"{machine.address}/24", "dev", CABLE)
            machine.do("ip", "link", "set", "lo", "up")
            machine.plug()
        yield machines[0], machines[1]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _wait_for_namespace(pid: int) -> None:
    """Until a holder has left the namespace that it was started in."""
    mine = Path("/proc/self/ns/net").readlink()
    for _ in range(200):
        if Path(f"/proc/{pid}/ns/net").readlink() != mine:
            return
        time.sleep(0.02)
    raise AssertionError("the namespace was not made")


@contextmanager
def on(machine: Machine, folder: Path, *arguments: str) -> Iterator[Command]:
    """`python -m runner` with `arguments` on that machine, started in `folder`; nothing of it is left afterwards."""
    command = Command(folder, machine.enter(sys.executable, "-m", "runner", *arguments), [PROJECT], {})
    try:
        yield command
    finally:
        command.kill()
