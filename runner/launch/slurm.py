"""What Slurm tells a task that it started: which node of the run this is, and where the nodes meet.

`srun python -m runner hardware=2node` is one command on every node; nothing is typed twice.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence

from runner.errors import ConfigError, Problem

PORTS = range(10_000, 30_000)  # below those that systems hand out by themselves
_FIRST = re.compile(r"^(?P<prefix>[^\[,]+)(\[(?P<number>\d+)[^\]]*\](?P<suffix>[^,\[]*))?")


def arguments_of(environment: Mapping[str, str], typed: Sequence[str], resolve: Callable[[str], str]) -> list[str]:
    """What a command that srun started on several nodes should add to its command line: its rank and the rendezvous.

    Nothing where srun did not, or where the command line says it. `resolve` turns a node's name into an address.
    Raises ConfigError where a node has several tasks.
    """
    nodes = int(environment.get("SLURM_STEP_NUM_NODES", "1"))
    given = {a.partition("=")[0].lstrip("+") for a in typed}
    if nodes < 2 or given & {"node.rank", "rendezvous"} or "launch=slurm" in typed:
        return []
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", nodes))
    if tasks != nodes:
        what = f"srun has started {tasks} tasks on {nodes} nodes, and a run wants one on each, which starts the node's processes"
        raise ConfigError([Problem("srun", what, "Type srun --ntasks-per-node=1 ...")])
    return [f"node.rank={environment['SLURM_NODEID']}", f"rendezvous={rendezvous(environment, resolve)}"]


def rendezvous(environment: Mapping[str, str], resolve: Callable[[str], str]) -> str:
    """HOST:PORT on the first node of the step; the same on every node, and another for every job and step."""
    first = first_of(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
    step = environment.get("SLURM_STEP_ID", "0")
    key = int(environment["SLURM_JOB_ID"]) + 7 * (int(step) if step.isdigit() else 0)
    return f"{resolve(first)}:{PORTS[key % len(PORTS)]}"


def first_of(nodes: str) -> str:
    """The first node of a list as Slurm writes it: `gpu[003-007,9],login2` gives `gpu003`."""
    found = _FIRST.match(nodes)
    if found is None:
        raise ValueError(f"'{nodes}' is no list of nodes")
    return found["prefix"] + (found["number"] or "") + (found["suffix"] or "")


def address_of(node: str) -> str:
    """A node's name where it can be looked up, else the address that Slurm itself reaches it by."""
    try:
        socket.gethostbyname(node)
    except OSError:
        asked = ["scontrol", "show", "node", node, "--oneliner"]
        try:
            told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return node
        found = re.search(r"\bNodeAddr=(\S+)", told)
        return found[1] if found else node
    return node
