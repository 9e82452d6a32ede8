"""Can one node connect to another? By really doing so, at a port of nobody's choice, as gloo does.

Who listens sends a word that only it knows: where an address leads to another machine than was meant (127.0.0.1
does, on every machine), another one answers, or none.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import uuid
from dataclasses import dataclass
from typing import Any

from runner.launch.network import listen

LIMIT = 3.0  # seconds for a connection to come about
_LENGTH = 32


class Door:
    """A port that is open until it is closed, or for as long as the process runs. Raises OSError."""

    def __init__(self, address: str):
        self.word = uuid.uuid4().hex
        self._listener = listen(address)
        self.address, self.port = self._listener.getsockname()
        threading.Thread(target=self._answer, daemon=True).start()

    def as_json(self) -> dict[str, Any]:
        return {"address": self.address, "port": self.port, "word": self.word}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        self._listener.close()

    def _answer(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            with connected:
                connected.settimeout(LIMIT)
                try:
                    connected.sendall(self.word.encode())
                except OSError:
                    continue


@dataclass(frozen=True, slots=True)
class Way:
    """How a connection went: `how` is open, refused, silent, stranger or error."""

    how: str
    detail: str = ""


def try_door(address: str, port: int, word: str) -> Way:
    """Connect, and hear the word."""
    try:
        with socket.create_connection((address, port), timeout=LIMIT) as connected:
            heard = b""
            while len(heard) < _LENGTH and (part := connected.recv(_LENGTH - len(heard))):
                heard += part
    except TimeoutError:
        return Way("silent")
    except ConnectionRefusedError:
        return Way("refused")
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        return Way("error", f"{error.strerror or error}{f' ({name})' if name else ''}")
    return Way("open") if heard.decode(errors="replace") == word else Way("stranger")
