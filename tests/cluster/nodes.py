"""Programs inside nodes: what two of them measure of the link between them, with nothing but sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner.link.emulated import EmulatedNodes, why_not
from runner.link.shaping import Shape, address
from tests.commands import PROJECT

WHY = why_not(Shape(2, 350.0, delay=1.0))
needs_nodes = pytest.mark.skipif(WHY is not None, reason=f"no nodes on this machine: {WHY}")

_SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], 5000)); print("listening", flush=True)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
total = 0
while part := c.recv(1 << 20):
    total += len(part)
    if sys.argv[2] == "echo" or total == int(sys.argv[2]): c.sendall(b"x")
"""
_BULK = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 5000)); size = int(sys.argv[2]); start = time.monotonic()
s.sendall(bytes(size)); s.recv(1); print(size * 8 / (time.monotonic() - start) / 1e6)
"""
_PING = """
import socket, sys, time, statistics
s = socket.create_connection((sys.argv[1], 5000)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); times = []
for _ in range(20):
    start = time.monotonic(); s.sendall(b"x"); s.recv(1); times.append((time.monotonic() - start) * 1e3)
print(min(times), statistics.median(times), max(times))
"""
_LISTEN = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind((sys.argv[1], 5000)); s.settimeout(0.7); print("listening", flush=True); got = []
try:
    while True: got.append(int(s.recv(64)))
except TimeoutError: print(len(got), got == sorted(got))
"""
_SHOUT = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(int(sys.argv[2])):
    s.sendto(str(n).encode(), (sys.argv[1], 5000))
    if n % 20 == 0: time.sleep(0.001)
"""


@contextmanager
def opened(shape: Shape) -> Iterator[EmulatedNodes]:
    nodes = EmulatedNodes(shape)
    try:
        yield nodes
    finally:
        nodes.close()


def goodput(nodes: EmulatedNodes, size: int) -> float:
    """Mbit/s that a program of node 1 gets through to one of node 0."""
    with _inside(nodes, 0, _SERVER, address(0), str(size)):
        return float(_answer(nodes, 1, _BULK, address(0), str(size)))


def round_trips(nodes: EmulatedNodes, source: int = 1, target: int = 0) -> tuple[float, float, float]:
    """The shortest, the median and the longest of twenty round trips, in ms."""
    with _inside(nodes, target, _SERVER, address(target), "echo"):
        low, middle, high = map(float, _answer(nodes, source, _PING, address(target)).split())
    return low, middle, high


def datagrams(nodes: EmulatedNodes, count: int) -> tuple[int, bool]:
    """How many of so many datagrams arrive, and whether in their order."""
    with _inside(nodes, 0, _LISTEN, address(0)) as listener:
        _answer(nodes, 1, _SHOUT, address(0), str(count))
        assert listener.stdout is not None
        arrived, ordered = listener.stdout.readline().split()
    return int(arrived), ordered == "True"


def _start(nodes: EmulatedNodes, node: int, program: str, *arguments: str) -> subprocess.Popen[str]:
    enter = f"import sys; sys.path.insert(0, {str(PROJECT)!r})\nfrom runner.link.spaces import enter; enter({nodes.paths[node]!r})\n"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", enter + program, *arguments], stdout=subprocess.PIPE, text=True
    )


@contextmanager
def _inside(nodes: EmulatedNodes, node: int, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of a node, once it listens; ended with the block."""
    process = _start(nodes, node, program, *arguments)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "listening\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _answer(nodes: EmulatedNodes, node: int, program: str, *arguments: str) -> str:
    process = _start(nodes, node, program, *arguments)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return out
