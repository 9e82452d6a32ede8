"""A link does what it is told: rate, delay, jitter, loss, between any two nodes; and what a machine lacks is told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from runner.link.shaping import Shape
from tests.cluster.nodes import datagrams, goodput, needs_nodes, opened, round_trips
from tests.commands import started, tiny, workshop

pytestmark = pytest.mark.cluster

PAYLOAD = 1448 / 1514  # of a full Ethernet frame, for TCP


@needs_nodes
@pytest.mark.parametrize(("rate", "delay"), [(60.0, 0.0), (180.0, 0.0), (60.0, 5.0)])
def test_tcp_gets_the_rate_less_its_headers(rate: float, delay: float) -> None:
    with opened(Shape(2, rate, delay)) as nodes:
        seconds = 0.8
        found = goodput(nodes, int(rate * 1e6 / 8 * seconds))
    assert found == pytest.approx(rate * PAYLOAD, rel=0.1)


@needs_nodes
def test_a_delay_is_one_way_and_jitter_comes_on_top() -> None:
    """The shortest of twenty round trips tells it: a machine with other work to do makes some of them longer."""
    with opened(Shape(2, 500.0)) as nodes:
        assert round_trips(nodes)[0] < 2.0
    with opened(Shape(2, 500.0, delay=8.0)) as nodes:
        assert 16.0 <= round_trips(nodes)[0] < 20.0
    with opened(Shape(2, 500.0, delay=8.0, jitter=100.0)) as nodes:
        low, middle, _ = round_trips(nodes)
        assert low >= 16.0
        assert 70.0 < middle < 250.0


@needs_nodes
def test_frames_are_lost_as_often_as_told_and_keep_their_order() -> None:
    with opened(Shape(2, 500.0, delay=1.0, jitter=3.0, loss=10.0)) as nodes:
        arrived, ordered = datagrams(nodes, 2000)
    assert 0.86 * 2000 < arrived < 0.94 * 2000
    assert ordered
    assert nodes.wire is not None and nodes.wire["lost"] == 2000 - arrived + nodes.wire.get("dropped", 0)
    with opened(Shape(2, 500.0, delay=1.0)) as nodes:
        assert datagrams(nodes, 2000) == (2000, True)


@needs_nodes
@pytest.mark.parametrize("delay", [0.0, 4.0])
def test_any_of_three_nodes_reaches_any_other(delay: float) -> None:
    with opened(Shape(3, 100.0, delay)) as nodes:
        for source, target in ((0, 1), (1, 2), (2, 0)):
            assert 2 * delay <= round_trips(nodes, source, target)[0] < 2 * delay + 3.0


@needs_nodes
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="a right can be given up by root alone")
def test_user_namespaces_will_do(tmp_path: Path) -> None:
    """Without the right to make network namespaces, inside a user namespace that the keeper makes."""
    start = workshop(tmp_path / "start")
    give_up = ["--bounding-set=-sys_admin,-net_admin", shutil.which("python") or "python", "-m", "runner"]
    with started(
        start, program=["-c", f"import os; os.execvp('setpriv', {['setpriv', *give_up, *_two_nodes()]!r})"]
    ) as command:
        run = command.wait().expect(0).run()
    assert '"/proc/' in (run / "link.json").read_text()
    assert "/ns/user" in (run / "link.json").read_text()


@needs_nodes
def test_a_machine_that_cannot_make_them_says_so_before_anything_starts(tmp_path: Path) -> None:
    start = workshop(tmp_path / "start")
    unshare = shutil.which("unshare")
    assert unshare is not None
    limited = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    if subprocess.run(
        [unshare, "-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_net_namespaces"], check=False
    ).returncode:
        pytest.skip("this machine has no limit of namespaces that could be set")
    words = [
        unshare,
        "-Ur",
        "sh",
        "-c",
        limited,
        "sh",
        shutil.which("python") or "python",
        "-m",
        "runner",
        *_two_nodes(),
    ]
    with started(start, program=["-c", f"import os; os.execv({unshare!r}, {words!r})"]) as command:
        done = command.wait().expect(2)
    (line,) = done.lines()
    assert line.startswith("hardware: link=350mbit needs a network namespace for each node: ")
    assert "link.simulate=true" in line
    assert not (start / "outputs").exists()


def _two_nodes() -> list[str]:
    return [*(a for a in tiny() if not a.startswith("hardware")), "hardware=2node", "link=350mbit"]
