"""Frames carried by hand between nodes: late by a delay, with jitter, some of them lost.

Kernels without `netem` cannot do that themselves. Frames keep their order, and pass unchanged: PACKET_VNET_HDR hands over
large ones whole, with checksums yet to be made, so that one read moves up to 64 KB. The rate is not limited here.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import time
from collections import Counter, deque

from runner.link.shaping import Shape, port

_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_RECEIVE_BUFFER, _FORCED = 8 << 20, 33  # SO_RCVBUFFORCE, which takes a right that a user namespace does not give
_EVERY_PROTOCOL = 3
_HEADER = 10  # bytes of the virtio header before each frame
_LARGEST = 70_000
_AT_ONCE = 16  # frames read from one port before the others are looked at


class Wire:
    """Joins the nodes' ports in this process's network namespace until `stop` can be read."""

    def __init__(self, shape: Shape):
        self.counts: Counter[str] = Counter()
        self._delay, self._jitter, self._loss = shape.delay / 1e3, shape.jitter / 1e3, shape.loss / 100
        self._ports = [_open(port(node)) for node in range(shape.nodes)]
        self._late: list[deque[tuple[float, int, bytes]]] = [deque() for _ in self._ports]  # by where they come from
        self._random = random.Random(0)

    def carry(self, stop: int) -> None:
        """Until the file `stop` is readable."""
        number_of = {s.fileno(): n for n, s in enumerate(self._ports)}
        watched = [stop, *number_of]
        while True:
            heads = [queue[0][0] for queue in self._late if queue]
            wait = max(0.0, min(heads) - time.monotonic()) if heads else None
            readable, _, _ = select.select(watched, (), (), wait)
            if stop in readable:
                return
            for fd in readable:
                self._take(number_of[fd])
            self._deliver()

    def _take(self, source: int) -> None:
        queue = self._late[source]
        for _ in range(_AT_ONCE):
            try:
                frame = self._ports[source].recv(_LARGEST)
            except BlockingIOError:
                return
            if self._loss and self._random.random() < self._loss:
                self.counts["lost"] += 1
                continue
            due = time.monotonic() + self._delay + (self._random.random() * self._jitter if self._jitter else 0.0)
            for target in self._targets(source, frame):
                queue.append((max(due, queue[-1][0]) if queue else due, target, frame))

    def _targets(self, source: int, frame: bytes) -> list[int]:
        """The node that a frame is for, by the last byte of its address; all others where it is for all."""
        node = frame[_HEADER + 5] - 1
        if frame[_HEADER] & 1 or not 0 <= node < len(self._ports):
            return [n for n in range(len(self._ports)) if n != source]
        return [node] if node != source else []

    def _deliver(self) -> None:
        now = time.monotonic()
        for queue in self._late:
            while queue and queue[0][0] <= now:
                _, target, frame = queue.popleft()
                try:
                    self._ports[target].send(frame)
                except OSError:  # its queue is full, as a real one may be
                    self.counts["dropped"] += 1
                else:
                    self.counts["carried"] += 1


def _open(device: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    opened.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    with contextlib.suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, _FORCED, _RECEIVE_BUFFER)
    opened.bind((device, 0))
    os.set_blocking(opened.fileno(), False)
    return opened
