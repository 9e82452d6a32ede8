"""The doctor between machines of their own: an interface that leads nowhere, and a link whose rate is known."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from runner.link.emulated import EmulatedNodes
from runner.link.shaping import Shape, address
from tests.cluster.machines import Machine, two_machines, why_not
from tests.cluster.nodes import needs_nodes
from tests.commands import PROJECT, Command, Done, runner, started

pytestmark = [pytest.mark.cluster, pytest.mark.ranks]


def enter(paths: list[str]) -> list[str]:
    """What Python is given to run a command on a node."""
    first = f"from runner.link.spaces import enter; enter({paths!r})"
    return ["-c", f"{first}\nfrom runner.cli import main; raise SystemExit(main())"]


def on(machine: Machine, folder: Path, *arguments: str, **variables: str) -> Command:
    return Command(folder, machine.enter(sys.executable, "-m", "runner", "doctor", *arguments), [PROJECT], variables)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_an_interface_that_leads_nowhere(tmp_path: Path) -> None:
    with two_machines() as (one, other):
        where = f"rendezvous={one.address}:29400"
        commands = [
            on(one, tmp_path, "--json", "hardware.nodes=2", where),
            on(other, tmp_path, "node.rank=1", where, GLOO_SOCKET_IFNAME="lo"),
        ]
        try:
            first, second = (c.wait() for c in commands)
        finally:
            for command in commands:
                command.kill()
    (found,) = [f for f in json.loads(first.expect(1).out)["findings"] if f["wrong"]]
    assert "cannot connect to node 1" in found["what"] and "GLOO_SOCKET_IFNAME=lo" in found["what"]
    assert f"name the interface of {other.address}" in found["cure"]
    assert "unset GLOO_SOCKET_IFNAME on node 1" in second.expect(1).out


def measured(folder: Path, nodes: EmulatedNodes) -> Done:
    where = f"rendezvous={address(0)}:29400"
    with (
        started(folder, "doctor", "--json", "hardware.nodes=2", where, program=enter(nodes.paths[0])) as first,
        started(folder, "doctor", "node.rank=1", where, program=enter(nodes.paths[1])) as second,
    ):
        second.wait().expect(0)
        return first.wait().expect(0)


@needs_nodes
def test_the_rate_and_the_delay_of_a_link_come_out_and_the_plan_uses_them(tmp_path: Path) -> None:
    nodes = EmulatedNodes(Shape(2, 200.0, delay=5.0))
    try:
        measured(tmp_path, nodes)
    finally:
        nodes.close()
    text = (tmp_path / "link.yaml").read_text()
    rate, delay = (float(re.search(rf"^{key}: (\S+)", text, re.MULTILINE)[1]) for key in ("rate", "delay"))  # type: ignore[index]
    assert rate == pytest.approx(200, rel=0.1)
    assert delay == pytest.approx(5, rel=0.25)
    plan = runner(
        tmp_path, "plan", "task=reviews", "hardware=2node", "--link", "link.yaml", "sync.bucket_mb=25", "--json"
    ).expect(0)
    told = json.loads(plan.out)
    assert told["config"]["link"]["rate"] == rate
    assert told["seconds"]["reduction"] == pytest.approx(told["comm"]["bytes"] * 8 / (rate * 1e6 * 0.956), rel=0.1)
