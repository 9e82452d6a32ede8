"""Where other commands ask to be nodes of a run: who fits is let in, and who does not is told why at once, also while a job runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console

from runner.endpoint import endpoint
from runner.errors import ConfigError, Problem
from runner.launch.introduction import difference, introduction
from runner.launch.network import listen
from runner.launch.peer import Peer

HELLO_WITHIN = 5.0  # seconds in which who connects must say who it is


def taken(rendezvous: str, how: Callable[[str, int], socket.socket]) -> socket.socket:
    """A socket at that place, made by `listen` or `bound`. Raises ConfigError where this machine cannot have it."""
    where = endpoint(rendezvous)
    assert where is not None, "checked with the configuration"
    try:
        return how(socket.gethostbyname(where[0]), where[1])
    except OSError as error:
        what = f"the first node cannot listen at {rendezvous} ({error.strerror or error})"
        fix = "Give an address of the machine with node.rank=0 that the others reach, and a port that is free there"
        raise ConfigError([Problem("rendezvous", what, fix)]) from error


class Door:
    """The place of the first node's command that others connect to."""

    def __init__(self, rendezvous: str, arguments: Sequence[str], out: Console):
        """Raises ConfigError where this machine cannot listen at `rendezvous`."""
        self.listener = taken(rendezvous, listen)
        self.listener.settimeout(0.0)
        self.address: str = self.listener.getsockname()[0]
        self._arguments, self._out = list(arguments), out
        self._mine: dict[str, Any] = {}
        self._unknown: dict[Peer, float] = {}  # connected, and must say by then who they are
        self._fit: dict[int, tuple[Peer, dict[str, Any]]] = {}  # by rank

    @property
    def connections(self) -> list[Any]:
        """What becomes ready when somebody connects, or says who he is."""
        return [self.listener, *(p.connection for p in self._unknown if not p.lost)]

    def look(self, count: int, peers: Mapping[int, Peer]) -> None:
        """Let in who has connected, without waiting. A run has `count` nodes, of which some ranks belong to `peers`."""
        with suppress(OSError):  # nobody there
            peer = Peer(self.listener.accept()[0], "a node that has not said who it is")
            peer.bear(1.0)  # a job must not wait for half a message
            self._unknown[peer] = time.monotonic() + HELLO_WITHIN
        for peer, until in list(self._unknown.items()):
            hello = next(peer.hear(), None)
            if hello is not None or peer.lost or time.monotonic() > until:
                del self._unknown[peer]
                self._judge(peer, hello, count, peers)
        for number, (peer, _) in list(self._fit.items()):
            list(peer.hear())
            if peer.lost:
                self._fit.pop(number)[0].close()

    def admitted(self) -> dict[int, tuple[Peer, dict[str, Any]]]:
        """Those who fit, by their ranks, with what they are. They are handed over once."""
        fit, self._fit = self._fit, {}
        return fit

    def close(self) -> None:
        for peer in [*self._unknown, *(peer for peer, _ in self._fit.values())]:
            peer.close()
        self.listener.close()

    def _judge(self, peer: Peer, hello: dict[str, Any] | None, count: int, peers: Mapping[int, Peer]) -> None:
        number = hello.get("rank") if hello is not None and hello.get("kind") == "hello" else None
        list(peer.hear())  # what is unread at the end would take our answer with it
        if hello is None or not isinstance(number, int):
            peer.close()
            return
        peer.name = f"node {number}, {hello.get('host')}"
        held = {n: p.name for n, p in peers.items() if not p.lost} | {n: p.name for n, (p, _) in self._fit.items()}
        why = self._unfit(number, hello, count, held)
        if why is None:
            self._fit[number] = peer, hello
            return
        peer.tell("refused", why=why)
        peer.close()
        self._out.print(f"refused {peer.name}: {why}", markup=False, highlight=False, soft_wrap=True)

    def _unfit(self, number: int, hello: dict[str, Any], count: int, held: Mapping[int, str]) -> str | None:
        if not 0 < number < count:
            return f"node.rank={number} is none of the nodes 1 to {count - 1} of this run"
        if number in held:
            return f"node.rank={number} is taken by {held[number]}; give every node a rank of its own"
        self._mine = self._mine or introduction(0, self._arguments)
        return difference(self._mine, hello)
