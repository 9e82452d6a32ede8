"""The nodes of a run on this machine, as its launcher sees them: opened, entered by ranks, closed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import runner
from runner.errors import LinkError
from runner.link.shaping import DEVICE, Shape, address
from runner.plan import Plan
from runner.rundir import RunFolder, write_text

PORT = 29400  # of the run's store; no other process is in the namespace of the first node
_PATIENCE = 20.0  # seconds for the keeper to end


def shape_of(plan: Plan) -> Shape | None:
    """The nodes that a plan wants to have on this machine; None: no link, or a simulated one."""
    link = plan.config.link
    if not link.chosen or link.simulate:
        return None
    assert link.rate is not None, "checked with the plan"
    return Shape(plan.config.hardware.nodes, link.rate, link.delay, link.jitter, link.loss)


@contextlib.contextmanager
def joined(plan: Plan, folder: RunFolder) -> Iterator[EmulatedNodes | None]:
    """The nodes that a plan wants on this machine, for as long as the block runs; None where it wants none. `link.json` tells
    of them: how to enter them while they are there, and what each has sent at the end. Raises LinkError."""
    shape = shape_of(plan)
    if shape is None:
        yield None
        return
    nodes = EmulatedNodes(shape)
    try:
        write_text(folder.link, nodes.as_json())
        yield nodes
    finally:
        nodes.close()
        with contextlib.suppress(OSError):  # a full disk is told of elsewhere
            write_text(folder.link, nodes.as_json())


@cache
def why_not(shape: Shape) -> str | None:
    """Why nodes of this shape cannot be made here, found by making them; None where they can."""
    if not Path("/proc/self/ns/net").exists():
        return "they are a feature of Linux"
    try:
        EmulatedNodes(shape).close()
    except LinkError as error:
        return str(error)
    return None


class EmulatedNodes:
    """Nodes that are there from the making of this object to its `close`, or to the end of this process, however that comes.
    Raises LinkError where they cannot be made.

    `paths[n]` is what a rank of node n has to enter; `traffic` and `wire` are known once they are closed.
    """

    def __init__(self, shape: Shape):
        self.shape = shape
        self.traffic: list[dict[str, int]] = []
        self.wire: dict[str, int] | None = None
        self._keeper = _start()
        try:
            self.paths = self._ask()
        except BaseException:
            self.close()
            raise

    def seat(self, rank: int, size: int) -> dict[str, Any]:
        """What is special about the place of a rank: its node, and where on it the ranks meet. Rank 0 listens itself: nobody
        else is there to take its port."""
        here = size // self.shape.nodes
        return {
            "local_rank": rank % here,
            "address": self._address(0),
            "port": PORT,
            "listener": None,
            "interface": self.device,
            "spaces": self.paths[rank // here],
        }

    def name_of(self, rank: int, size: int) -> str:
        """Of the node that a rank is on."""
        return f"node {rank // (size // self.shape.nodes)}" if self.shape.nodes > 1 else ""

    def as_json(self) -> str:
        """What the link is made of, and what it has carried, once that is known."""
        nodes = [
            {
                "address": self._address(n),
                "device": self.device,
                "enter": path,
                **(self.traffic[n] if self.traffic else {}),
            }
            for n, path in enumerate(self.paths)
        ]
        return json.dumps({"shape": self.shape.as_json(), "nodes": nodes, "wire": self.wire}, indent=2) + "\n"

    def close(self) -> None:
        """Let the nodes go; what each has sent is known then, unless their keeper was killed."""
        keeper = self._keeper
        try:
            said = keeper.communicate(timeout=_PATIENCE)[0].splitlines()  # closes its input
            told = json.loads(said[-1]) if said else {}  # before it its first word, where making them was interrupted
            self.traffic, self.wire = told.get("traffic", []), told.get("wire")
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.communicate()

    def _ask(self) -> list[list[str]]:
        """Give the keeper its orders; returns the paths of the nodes."""
        keeper = self._keeper
        assert keeper.stdin is not None and keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(self.shape.as_json()) + "\n")
            keeper.stdin.flush()
        told = json.loads(keeper.stdout.readline() or "{}")
        if "nodes" not in told:
            gone = "the process that should hold them is gone"
            raise LinkError(told.get("error", gone))
        paths: list[list[str]] = told["nodes"]
        return paths

    def _address(self, node: int) -> str:
        return address(node) if self.shape.nodes > 1 else "127.0.0.1"

    @property
    def device(self) -> str:
        return DEVICE if self.shape.nodes > 1 else "lo"


def _start() -> subprocess.Popen[str]:
    """The keeper: without site packages, so that it is there in milliseconds, and out of reach of the terminal's signals."""
    root = str(Path(runner.__file__).resolve().parent.parent)
    program = f"import sys; sys.path.insert(0, {root!r}); from runner.link.keeper import main; main()"
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-B", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    )
