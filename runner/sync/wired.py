"""What every summation has in common that sends whole gradients or weights over a `Wire`."""

from __future__ import annotations

from runner.sync.whole import Whole
from runner.sync.wire import Wire


class Wired(Whole):
    """What it sends is counted by its wire."""

    _wire: Wire

    @property
    def collectives(self) -> int:
        return self._wire.collectives

    @property
    def bytes(self) -> int:
        return self._wire.bytes


class Unrepeated(Wired):
    """A policy under which no window is repeated: the configuration refuses it together with batch=auto_memory."""

    def abandon(self) -> None:
        raise AssertionError(
            "a window that ran out of memory is repeated under batch=auto_memory only, which is refused"
        )

    def reset(self) -> None:
        self.abandon()
