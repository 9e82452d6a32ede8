"""The doctor on two nodes of this machine's loopback: sound ones, ones that differ, and one that a firewall cuts off."""

from __future__ import annotations

import json
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.commands import Done, started, until

pytestmark = pytest.mark.ranks

# What one node is started with instead of `-m runner`: the real command, in a process where something is amiss
AMISS = """
import time, runner.launch.introduction as said
clock, version = time.time, said._version
time.time = lambda: clock() + 7
said._version = lambda package: "1.0.0" if package == "torch" else version(package)
from runner.cli import main; raise SystemExit(main())
"""
CUT_OFF = """
import socket, sys
connect, meeting = socket.create_connection, int(sys.argv[-1].rpartition(":")[2])
def dropped(where, **options):
    if where[1] != meeting: raise TimeoutError
    return connect(where, **options)
socket.create_connection = dropped
from runner.cli import main; raise SystemExit(main())
"""


def examined(folder: Path, other: str | None = None) -> tuple[Done, Done]:
    """Both nodes' commands, to their end; the second is started as `other`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        where = f"rendezvous=127.0.0.1:{probe.getsockname()[1]}"
    program = ["-c", other] if other else None
    with (
        started(folder, "doctor", "--json", "hardware.nodes=2", where) as first,
        started(folder, "doctor", "node.rank=1", where, program=program) as second,
    ):
        return first.wait(), second.wait()


def wrong(done: Done) -> list[str]:
    return [f["what"] for f in json.loads(done.out)["findings"] if f["wrong"]]


def test_two_sound_nodes(tmp_path: Path) -> None:
    first, second = examined(tmp_path)
    assert wrong(first.expect(0)) == []
    assert second.expect(0).out.endswith("nothing is wrong\n")
    told = json.loads(first.out)
    sizes = [size for size, _ in told["link"]["points"]]
    assert sizes[0] == 4 and sizes == sorted(sizes) and sizes[-1] >= 2**20
    assert told["link"]["mbit"] > 100 and 0 < told["link"]["alpha"] < 0.1
    assert set(told["nodes"]) == {"1"} and told["nodes"]["1"]["address"] == "127.0.0.1"
    assert "name: measured" in (tmp_path / "link.yaml").read_text()


def test_nodes_that_differ(tmp_path: Path) -> None:
    first, second = examined(tmp_path, AMISS)
    versions, clock = wrong(first.expect(1))
    assert "has torch 1.0.0, node 0" in versions
    assert "the clock of node 1 is 7.0 s ahead of that of node 0" in clock
    assert json.loads(first.out)["link"] is not None, "what can be measured is"
    assert "has torch 1.0.0" in second.expect(1).out and second.out.endswith("2 things are wrong\n")


def test_a_firewall_in_one_direction(tmp_path: Path) -> None:
    first, second = examined(tmp_path, CUT_OFF)
    (closed,) = wrong(first.expect(1))
    assert "node 1" in closed.split("cannot connect to")[0] and "node 0" in closed.split("cannot connect to")[1]
    assert "firewall drops" in closed
    assert json.loads(first.out)["link"] is None and not (tmp_path / "link.yaml").exists()
    assert "Open all TCP ports from node 1 to node 0" in second.expect(1).out


def test_one_that_speaks_otherwise(tmp_path: Path) -> None:
    """Another version's doctor, or none at all, is sent away with a line, and the first one goes on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with started(tmp_path, "doctor", "hardware.nodes=2", f"rendezvous=127.0.0.1:{port}", "node.wait=5") as first:
        until(lambda: "waiting for 1 more" in first.said()[0], 30, "the first node waits")
        for hello in ({"kind": "doctor", "rank": 1, "host": "h"}, {"kind": "hello", "rank": 1}):
            with Connection(socket.create_connection(("127.0.0.1", port)).detach()) as peer:
                peer.send_bytes(json.dumps(hello).encode())
                told = [json.loads(peer.recv_bytes())]
                while told[-1]["kind"] == "beat":
                    told.append(json.loads(peer.recv_bytes()))
            assert told[-1]["kind"] == "refused"
        done = first.wait().expect(1)
    assert "has another doctor than this one" in done.out and "no sign of node 1" in done.out
