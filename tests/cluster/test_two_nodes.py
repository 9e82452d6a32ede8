"""Runs over two nodes of one machine: the same updates, the bytes that were counted, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.compare.session import compare
from tests.cluster.nodes import needs_nodes
from tests.commands import marked, rows, runner, started, status, tiny, until, workshop
from tests.running import Bench, Run, parting

pytestmark = [pytest.mark.cluster, pytest.mark.ranks]

LEARNING = ("optim=adamw", "optim.lr=0.003", "optim.clip=1.0", "batch.size=16", "budget.updates=8", "precision=fp64")
MANY = {"items": 85, "depth": 6}
TIGHT = 1e-10


def two_nodes(bench: Bench, link: str, *settings: str, fault: str | None = None) -> Run:
    arguments = MANY | ({"fault": fault} if fault else {})
    return bench.run("Text", arguments, *LEARNING, "hardware=2node", "accum=4", f"link={link}", *settings)


def traffic(run: Run) -> list[dict[str, Any]]:
    told: dict[str, Any] = json.loads(run.folder.link.read_text())
    return list(told["nodes"])


@needs_nodes
def test_two_nodes_make_the_updates_of_one_process(bench: Bench) -> None:
    alone = bench.run("Text", MANY, *LEARNING, "accum=8")
    fast, slow = two_nodes(bench, "1gbit"), two_nodes(bench, "100mbit", "link.delay=2")
    assert parting(alone, fast, TIGHT) is None
    assert parting(alone, slow, TIGHT) is None
    wrong = two_nodes(bench, "1gbit", fault="no_reduction")
    assert parting(alone, wrong, TIGHT) is not None, "the control: a fault that the check is for"


@needs_nodes
def test_two_links_are_two_setups_of_one_experiment(bench: Bench, tmp_path: Path) -> None:
    fast, slow = two_nodes(bench, "1gbit"), two_nodes(bench, "100mbit", "link.delay=2")
    assert fast.plan.experiment == slow.plan.experiment
    assert fast.plan.setup != slow.plan.setup
    (verdict,) = compare([str(fast.folder.path), str(slow.folder.path)]).verdicts
    assert verdict.kind.value in ("identical", "equal")
    wrong = shutil.copytree(fast.folder.path, tmp_path / "wrong") / "updates.jsonl"
    changed = [row | {"loss": row["loss"] * (1.01 if row["update"] == 4 else 1)} for row in rows(wrong)]
    wrong.write_text("".join(json.dumps(row) + "\n" for row in changed))
    (verdict,) = compare([str(wrong.parent), str(slow.folder.path)]).verdicts
    assert (verdict.kind.value, verdict.first) == ("different", 4), "the control: one loss that is off by a hundredth"


@needs_nodes
@pytest.mark.parametrize("policy", ["accumulate", "every_batch"])
def test_what_is_counted_is_what_passes_through_the_link(bench: Bench, policy: str) -> None:
    """In a ring of two each node sends what it hands over, once; node 1 sends little else."""
    few, many = (two_nodes(bench, "1gbit", f"sync={policy}", f"budget.updates={n}") for n in (3, 8))
    counted = sum(many.column("bytes")) - sum(few.column("bytes"))
    sent = traffic(many)[1]["sent"] - traffic(few)[1]["sent"]
    assert counted > 5e5
    assert counted <= sent < 1.1 * counted
    assert traffic(many)[1]["sent"] == traffic(many)[0]["received"]


@needs_nodes
def test_one_node_sends_nothing_through_a_link(bench: Bench) -> None:
    run = bench.run("Text", MANY, *LEARNING, "hardware=2cpu", "accum=4", "link=100mbit")
    assert any("all processes are on one node" in note for note in run.plan.notes)
    assert [n["device"] for n in traffic(run)] == ["lo"]
    assert parting(run, bench.run("Text", MANY, *LEARNING, "accum=8"), TIGHT) is None


def test_a_simulated_link_is_as_slow_and_counts_the_same(bench: Bench) -> None:
    settings = ("hardware=2node", "accum=2", "batch.size=16", "budget.updates=4", "precision=fp64", "sync=every_batch")
    plain = bench.run("Text", MANY, *settings[1:], "hardware=2cpu")
    late = bench.run("Text", MANY, *settings, "link=350mbit", "link.simulate=true", "link.delay=100")
    assert parting(plain, late, 0.0) is None
    assert late.column("bytes") == plain.column("bytes")
    assert late.column("collectives") == plain.column("collectives")
    collectives = late.column("collectives")[2]
    assert min(late.column("seconds")[1:]) >= collectives * 2 * 0.100
    assert min(plain.column("seconds")[1:]) < collectives * 2 * 0.100, "the control: it is the link that takes the time"


@needs_nodes
def test_a_sweep_over_rounds_ends_with_what_a_policy_costs_on_each_side_of_a_slow_link(tmp_path: Path) -> None:
    """Reduced at every micro-batch, two nodes take at least twice the time; one node, through which nothing passes, does not."""
    sweep = ["-m", "repeat=1,2", "hardware=2cpu,2node", "sync=every_batch,accumulate", "link=10mbit", "accum=4"]
    few = ["budget.updates=4", "log.memory=false", "tracker=local"]
    done = runner(workshop(tmp_path / "start"), *sweep, *few).expect(0)
    kinds = [p.split() for p in done.out.partition("rounds of")[2].splitlines() if p.startswith("hardware=")]
    seconds = {" ".join(k[:2]): float(k[2]) for k in kinds}
    ratios = {" ".join(k[:2]): float(k[5]) for k in kinds}
    assert list(ratios) == [f"hardware={h} sync={s}" for h in ("2cpu", "2node") for s in ("every_batch", "accumulate")]
    assert ratios["hardware=2node sync=every_batch"] > 2.0
    assert seconds["hardware=2cpu sync=every_batch"] < seconds["hardware=2node sync=every_batch"] / 3
    assert ratios["hardware=2node sync=accumulate"] == 1.0


def _host() -> tuple[str, str]:
    """The names of namespaces, and the devices, that this machine has."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    devices = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return names, "\n".join(line.split(":")[1] for line in devices.splitlines())


ENDINGS = {
    "success": ("link=350mbit", ["budget.updates=3"], None, 0),
    "failure": ("link=wan", ["budget.updates=100000", "task.fail=rank1"], None, 1),
    "SIGKILL of the parent": (
        "link=wan",
        ["budget.updates=100000", "task.pause=0.02"],
        signal.SIGKILL,
        -signal.SIGKILL,
    ),
}


@needs_nodes
@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_is_left_of_the_nodes(name: str, tmp_path: Path) -> None:
    link, more, deadly, code = ENDINGS[name]
    before = _host()
    plain = [a for a in tiny() if not a.startswith(("hardware", "budget"))]
    with started(workshop(tmp_path / "start"), *plain, "hardware=2node", link, *more) as command:
        start = command.folder
        if deadly is not None:
            until(lambda: any(rows(f) for f in start.glob("outputs/*/*/updates.jsonl")), 60, "it trains")
            (told,) = start.glob("outputs/*/*/link.json")
            keeper = int(json.loads(told.read_text())["nodes"][0]["enter"][-1].split("/")[2])
            assert keeper in marked(command.mark), "the search would find it"
            os.kill(command.process.pid, deadly)
        done = command.wait().expect(code)
        until(lambda: not marked(command.mark), 15, "no process is left, the keeper of the nodes neither")
    assert _host() == before
    assert status(done.run())["state"] == {0: "finished", 1: "failed"}.get(code, "interrupted")
