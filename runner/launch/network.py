"""Sockets to listen on, and the interface that an address belongs to."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening socket at an address of this machine; port 0 takes a free one. Raises OSError."""
    listener = bound(host, port)
    try:
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def bound(host: str, port: int = 0) -> socket.socket:
    """A socket that has an address of this machine, at which nobody is let in yet. Raises OSError."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:  # a command that ended a moment ago must not block the next; a free port is free
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError:
        taken.close()
        raise
    return taken


def interface_of(address: str) -> str | None:
    """The name of the interface whose first address this is; None where it cannot be told."""
    if address.startswith("127."):
        return "lo0" if sys.platform == "darwin" else "lo"
    return next((name for name, found in addresses() if found == address), None)


def addresses() -> list[tuple[str, str]]:
    """The interfaces that have an address, each with its first one; none where the system is not Linux."""
    if sys.platform != "linux":
        return []
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
