"""Namespaces of Linux: making one, entering one. Python 3.11 has no call for either."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000


def unshare(kinds: int) -> None:
    """Move this process into new namespaces of these kinds. Raises OSError where that is not allowed."""
    _call("unshare", kinds)


def enter(paths: Sequence[str], cores: Sequence[int] = ()) -> None:
    """Move this process into the namespaces that `paths` name, in that order, and keep it on `cores`, if any are named.

    A process with several threads may not enter a user namespace: this must come before the first of them.
    """
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_open(fd)
        finally:
            os.close(fd)
    if cores:
        os.sched_setaffinity(0, cores)


def enter_open(fd: int) -> None:
    """Move this process into the namespace of an open file."""
    _call("setns", fd, 0)


def become_root() -> None:
    """In a new user namespace, be its root: only as such may programs that are started there set up a network."""
    user, group = os.getuid(), os.getgid()
    unshare(NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
