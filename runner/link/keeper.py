"""The process that holds the nodes of a run: it makes their namespaces, and carries frames between them where needed.

The namespaces have no names. They exist as long as this process has them open (or a rank is inside), and it ends when its standard
input does: when the launcher closes it, or is gone, however it went. So there is nothing to clean up.

It is started as a program of its own, reads one line of JSON (a Shape) and answers with one: the paths by which ranks enter, or
why there are none. At its end it tells what each node has sent and received.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner.link import shaping, spaces
from runner.link.shaping import DEVICE, Shape
from runner.link.wire import Wire

_SYSTEM = "/usr/sbin:/sbin:/usr/local/sbin"  # where ip and tc lie, which is not on everybody's PATH


class CannotError(Exception):
    """Why nodes cannot be made here."""


def main() -> None:
    """Hold nodes until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ranks may need their nodes a little longer than the user does
    shape = Shape(**json.loads(_line(0)))
    try:
        nodes = Nodes(shape)
    except CannotError as error:
        _say({"error": str(error)})
        return
    _say({"nodes": nodes.paths})
    nodes.hold(0)
    _say({"traffic": nodes.traffic(), "wire": dict(nodes.wire.counts) if nodes.wire else None})


class Nodes:
    """The nodes of a shape, made. Raises CannotError."""

    def __init__(self, shape: Shape):
        self._shape = shape
        self._ip, self._tc = _tool("ip"), _tool("tc")
        self._as_user = _leave()  # from now on this process is between the nodes
        self._between = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._fds = [self._new() for _ in range(shape.nodes)]
        spaces.enter_open(self._between)
        self.wire: Wire | None = None
        self._join()

    @property
    def paths(self) -> list[list[str]]:
        """For every node, what a process has to enter, in this order."""
        me = f"/proc/{os.getpid()}"
        user = [f"{me}/ns/user"] if self._as_user else []
        return [[*user, f"{me}/fd/{fd}"] for fd in self._fds]

    def hold(self, until: int) -> None:
        """Keep the nodes until the file `until` ends."""
        while True:
            if self.wire:
                self.wire.carry(until)
            else:
                select.select([until], (), ())
            if not os.read(until, 4096):
                return

    def traffic(self) -> list[dict[str, int]]:
        """The bytes that each node has sent and received, as its device counts them."""
        found = []
        for fd in self._fds:
            spaces.enter_open(fd)
            lines = Path("/proc/self/net/dev").read_text().splitlines()
            counts = {name.strip(): values.split() for name, _, values in (line.partition(":") for line in lines[2:])}
            mine = counts.get(DEVICE)
            found.append({"sent": int(mine[8]) if mine else 0, "received": int(mine[0]) if mine else 0})
        spaces.enter_open(self._between)
        return found

    def _new(self) -> int:
        spaces.unshare(spaces.NEW_NETWORK)
        return os.open("/proc/self/ns/net", os.O_RDONLY)

    def _join(self) -> None:
        shape = self._shape
        for node, command in shaping.pairs(shape, [f"/proc/{os.getpid()}/fd/{fd}" for fd in self._fds]):
            self._run(self._ip, [command], self._between if node is None else self._fds[node])
        for node, fd in enumerate(self._fds):
            self._run(self._ip, shaping.node_commands(shape, node), fd)
            if shape.nodes > 1:
                self._run(self._tc, [shaping.rate_command(shape, DEVICE)], fd)
        if shape.nodes == 1 or shape.direct:
            return
        by_hand = shape.by_hand
        if not by_hand:
            try:
                self._run(self._ip, shaping.between_commands(shape, bridge=True), self._between)
            except CannotError:  # a kernel without bridges
                by_hand = True
        if by_hand:
            self._run(self._ip, shaping.between_commands(shape, bridge=False), self._between)
            self.wire = Wire(shape)
        if shape.nodes > 2:  # several may send to one: what a node receives is limited, too
            limits = [shaping.rate_command(shape, shaping.port(node)) for node in range(shape.nodes)]
            self._run(self._tc, limits, self._between)

    def _run(self, tool: str, commands: list[str], space: int) -> None:
        """Give commands to ip or tc inside a namespace."""
        done = subprocess.run(
            [tool, "-batch", "-"],
            input="\n".join(commands) + "\n",
            capture_output=True,
            text=True,
            check=False,
            pass_fds=self._fds,
            preexec_fn=lambda: spaces.enter_open(space),
        )
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise CannotError(f"{Path(tool).name} refused '{commands[0]}': {said}")


def _leave() -> bool:
    """Go into a network namespace of our own: directly, or inside a user namespace, which is what it returns."""
    try:
        spaces.unshare(spaces.NEW_NETWORK)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise CannotError("no more are allowed here (/proc/sys/user/max_net_namespaces)") from error
        if error.errno not in (errno.EPERM, errno.EACCES):
            raise CannotError(f"this kernel makes none ({error.strerror})") from error
    else:
        return False
    try:
        spaces.become_root()
        spaces.unshare(spaces.NEW_NETWORK)
    except OSError as error:
        raise CannotError(
            f"only root may make them here, since user namespaces are not allowed ({error.strerror})"
        ) from error
    return True


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")
    if found is None:
        raise CannotError(f"the command {name} is missing (it comes with the package iproute2)")
    return found


def _line(fd: int) -> str:
    """One line of a file, and nothing beyond it."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line.decode()


def _say(value: dict[str, Any]) -> None:
    try:
        print(json.dumps(value), flush=True)
    except BrokenPipeError:  # the launcher is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
