"""One node's line to another: messages between the commands that started them, and how long the other has been silent.

A message is a JSON object; nothing that comes in is ever executed. A thread sends a beat every second, so that a
node that says nothing is one that is stopped, gone or cut off. Nothing here waits for ever: what cannot be sent within
the limit makes the other side count as gone.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

BEAT = 1.0  # seconds between two signs of life
FIRST_LIMIT = 10.0  # seconds that sending may take before the run's own timeout is known
LARGEST = 64 * 2**20  # bytes of one message


class Peer:
    """The other end. `name` is how it is called in messages to users."""

    def __init__(self, connected: socket.socket, name: str):
        self.name = name
        self.lost: str | None = None  # why nothing more can come
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(None)
        os.set_blocking(connected.fileno(), True)
        self.connection = Connection(connected.detach())
        self.bear(FIRST_LIMIT)
        self._heard = time.monotonic()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def silent_for(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._heard

    def bear(self, seconds: float) -> None:
        """From now on the other side may take so long to receive what is sent."""
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        with socket.socket(fileno=os.dup(self.connection.fileno())) as same:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                same.setsockopt(socket.SOL_SOCKET, option, limit)

    def tell(self, kind: str, **facts: Any) -> None:
        """Send a message. Where that cannot be done the other side is lost, which `hear` will show."""
        data = json.dumps({"kind": kind, **facts}).encode()
        with self._sending:
            try:
                self.connection.send_bytes(data)
            except OSError as error:
                self._lose(f"nothing can be sent to it ({error.strerror or error})")

    def hear(self) -> Iterator[dict[str, Any]]:
        """The messages that have come in, without waiting for more."""
        while self.lost is None:
            try:
                if not self.connection.poll():
                    return
                message = json.loads(self.connection.recv_bytes(LARGEST))
                if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                    raise ValueError("no message of Samestep")
            except (EOFError, ConnectionError):
                self._lose("its command ended")
                return
            except (OSError, ValueError) as error:
                self._lose(f"it sent no whole message ({error})")
                return
            self._heard = time.monotonic()
            if message["kind"] != "beat":
                yield message

    def expect(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if none comes while the other side is silent for so long, or is lost."""
        while self.lost is None and self.silent_for < seconds:
            for message in self.hear():
                return message
            try:
                self.connection.poll(0.5)
            except OSError:
                self._lose("the connection broke")
        return None

    def close(self) -> None:
        self._closed.set()
        self._lose("it was left")
        with self._sending:
            self.connection.close()

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why

    def _beat(self) -> None:
        while not self._closed.wait(BEAT) and self.lost is None:
            self.tell("beat")
