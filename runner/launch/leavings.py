"""The folder in which a node keeps its ranks' rows until they are sent, and the folders that killed commands have left.

A folder's owner holds a lock in it, which the system gives back however the owner ends, and notes there how much was
sent. Who can take the lock knows that the owner is gone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from runner.rundir import RunFolder

PREFIX = "samestep-node-"
_OWNER = "owner"
_LAST = 1 << 16  # bytes at the end of a file in which its last newline is


class Kept:
    """A folder of this command."""

    def __init__(self, rank: int):
        self._size = 0
        self.folder = RunFolder(Path(tempfile.mkdtemp(prefix=f"{PREFIX}{rank}-")))
        owner = self.folder.path / _OWNER
        beside = owner.with_name(f".{_OWNER}")
        self._owner = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # a file system without locks: the folder then is nobody else's to judge
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            beside.rename(owner)  # with its lock, so that nobody finds it without

    def sent(self, size: int) -> None:
        """So many bytes of the rows are sent."""
        if size == self._size:
            return
        self._size = size
        with suppress(OSError):
            os.pwrite(self._owner, f"{size:020d}".encode(), 0)

    def holds_rows(self) -> bool:
        """Whether rows are here that were not sent."""
        return _whole(self.folder.batches) > self._size

    def leave(self) -> None:
        """Give the folder up, with what is in it."""
        os.close(self._owner)

    def remove(self) -> None:
        shutil.rmtree(self.folder.path, ignore_errors=True)
        self.leave()


def sweep() -> list[Path]:
    """Remove the folders of commands that are gone. Those that hold rows which were not sent stay, and are returned."""
    holding = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):  # taken, or not what it seems
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            with (path / _OWNER).open("r+") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _whole(RunFolder(path).batches) > int(owner.read() or 0):
                    holding.append(path)
                else:
                    shutil.rmtree(path)
    return holding


def _whole(path: Path) -> int:
    """The bytes of a file's whole lines."""
    if not path.exists():
        return 0
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _LAST))
        return file.tell() + file.read().rfind(b"\n") + 1
