"""Several machines, one command each: one folder, one configuration, and the updates of one process.

Both nodes are on this machine's loopback; tests/cluster has them apart.
"""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.launch.leavings import sweep
from tests.commands import Command, Done, files, marked, rows, runner, started, status, tiny, until, workshop

pytestmark = pytest.mark.ranks

DIGITS = ["batch.size=64", "budget.updates=8"]


def _rendezvous() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"rendezvous=127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def _nodes(folder: Path, *first: str, other: tuple[str, ...] = (), rank: int = 1) -> Iterator[tuple[Command, Command]]:
    """A command for each of two nodes, in folders of their own."""
    where = _rendezvous()
    folder.mkdir(exist_ok=True)
    starts = [workshop(folder / f"node-{n}") for n in range(2)]
    with started(starts[0], *first, where) as zero, started(starts[1], f"node.rank={rank}", where, *other) as one:
        yield zero, one


def _both(folder: Path, *first: str, other: tuple[str, ...] = ()) -> tuple[Done, Done]:
    with _nodes(folder, *first, other=other) as (zero, one):
        return zero.wait(), one.wait()


def _curve(run: Path) -> list[tuple[float, str]]:
    return [(row["loss"], row["digest"]) for row in rows(run / "updates.jsonl")]


def test_two_nodes_of_two_processes_are_one_run(tmp_path: Path) -> None:
    settings = [*DIGITS, "hardware=2node", "hardware.processes=4", "tracker=wandb"]
    done, other = _both(tmp_path / "nodes", *settings)
    done.expect(0)
    other.expect(0)
    assert "joined" in other.out
    assert not [f for f in files(other.folder) if f != "mytask.py"], "the other node's folder stays as it was"
    run = done.run()
    assert {(row["rank"]) for row in rows(run / "batches.jsonl")} == {0, 1, 2, 3}
    assert len(rows(run / "batches.jsonl")) == 8 * 4
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1, "one tracker run, not one for each node"
    assert {f.name for f in (run / "logs").iterdir()} == {f"rank-{n}.log" for n in range(4)}
    alone = runner(workshop(tmp_path / "alone"), *DIGITS, "hardware=4cpu").expect(0).run()
    assert _curve(run) == _curve(alone), "the same updates as by four processes of one machine"
    less = runner(workshop(tmp_path / "less"), *DIGITS, "hardware=4cpu", "seed=1").expect(0).run()
    assert _curve(run) != _curve(less), "the check would see another run"


def test_a_sweep_over_two_nodes_takes_both_through_all_jobs(tmp_path: Path) -> None:
    done, other = _both(tmp_path, "-m", *tiny(), "hardware=2node", "seed=1,2", "task.fail=null,rank1")
    done.expect(1)
    other.expect(1)
    states = [status(run)["state"] for run in done.runs()]
    assert sorted(states) == ["failed", "failed", "finished", "finished"]
    for run in done.runs():
        if status(run)["state"] == "failed":
            assert re.search(r"rank 1 of 2 \(node 1, .*\) failed", status(run)["reason"])


@pytest.mark.parametrize(
    ("first", "other", "rank", "said"),
    [
        ((), ("seed=7",), 1, "other settings (seed=7)"),
        ((), (), 2, "node.rank=2 is none of the nodes 1 to 1"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(
    first: tuple[str, ...], other: tuple[str, ...], rank: int, said: str, tmp_path: Path
) -> None:
    settings = [*tiny(), "hardware=2node", "node.wait=6", *first]
    with _nodes(tmp_path, *settings, other=other, rank=rank) as (zero, one):
        refused = one.wait().expect(2)
        done = zero.wait().expect(1)
    assert said in refused.err
    assert said in done.out, "the first node says whom it has sent away"
    assert re.search(r"no sign of node 1 after 6 s\. Type there: python -m runner node\.rank=1 rendezvous=", done.err)
    assert status(done.run())["state"] == "failed"


def test_an_other_version_is_refused() -> None:
    from runner.launch.introduction import difference, introduction

    first = introduction(0, ["seed=1"])
    assert difference(first, introduction(1, [])) is None
    assert difference(first, introduction(1, ["seed=1"])) is None
    for name, value in {"torch": "1.0", "samestep": "9", "python": "2.7", "code": "00"}.items():
        said = difference(first, {**introduction(1, []), name: value})
        assert said is not None and "Install the same on all nodes" in said


def test_a_rank_that_the_typed_nodes_do_not_have_is_refused_at_once() -> None:
    from runner.errors import ConfigError
    from runner.launch.joining import seat_of

    where = "rendezvous=127.0.0.1:29400"
    for typed in ("hardware=2node", "hardware.nodes=2"):
        assert seat_of([typed, "node.rank=1", where]) is not None
        with pytest.raises(ConfigError, match="of 2 nodes, counted from 0, 2 is none"):
            seat_of([typed, "node.rank=2", where])
    assert seat_of(["hardware=2node,3node", "node.rank=2", where]) is not None


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    alone = runner(workshop(tmp_path / "one"), "node.rank=1", "node.wait=2", _rendezvous()).expect(1)
    assert re.search(r"nobody answers at 127\.0\.0\.1:\d+ after 2 s", alone.err)
    assert len(alone.lines()) == 1, alone.err


def test_who_connects_without_being_a_node_disturbs_nothing(tmp_path: Path) -> None:
    where = _rendezvous()
    host, port = where.partition("=")[2].split(":")
    starts = [workshop(tmp_path / f"node-{n}") for n in range(2)]
    with started(starts[0], *tiny(), "hardware=2node", where) as zero:
        from tests.commands import listening

        until(lambda: int(port) in listening(marked(zero.mark)), 60, "it listens")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with started(starts[1], "node.rank=1", where) as one:
                zero.wait().expect(0)
                one.wait().expect(0)


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (["hardware=2node"], "rendezvous"),
        (["hardware=2node", "rendezvous=nowhere"], "rendezvous"),
        (["hardware=2node", "rendezvous=10.0.0.1:0"], "rendezvous"),
        (["rendezvous=127.0.0.1:29400"], "rendezvous"),
        (["node.rank=1"], "rendezvous"),
        (["node.rank=1", "rendezvous=127.0.0.1:29400", "node.wait=soon"], "node.wait"),
        (["node.rank=one"], "node.rank"),
        (["hardware=2node", "rendezvous=203.0.113.9:29400"], "rendezvous"),
    ],
)
def test_a_meeting_place_that_cannot_be_is_one_line(typed: list[str], key: str, tmp_path: Path) -> None:
    done = runner(workshop(tmp_path / "start"), *tiny(processes=1)[:2], "batch.size=8", *typed)
    done.expect(2)
    assert not done.runs()
    assert len(done.lines()) == 1 and done.lines()[0].startswith(f"{key}: "), done.err


def test_who_comes_while_a_run_goes_on_is_sent_away_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a killed command leaves is found once its owner is gone."""
    where = _rendezvous()
    first, other = (workshop(tmp_path / f"node-{n}") for n in range(2))
    with tempfile.TemporaryDirectory(prefix="ss-") as place:  # short: paths of sockets must be
        monkeypatch.setattr(tempfile, "tempdir", place)
        slow = [*tiny(updates=100_000), "task.pause=0.05", "hardware=2node", where]
        with started(first, *slow) as zero, started(other, "node.rank=1", where, TMPDIR=place) as one:
            until(lambda: any(map(rows, first.rglob("updates.jsonl"))), 90, "the run trains")
            for rank, why in ((5, "is none of the nodes 1 to 1 of this run"), (1, "is taken by node 1")):
                late = runner(other, f"node.rank={rank}", where).expect(2)
                assert f"node.rank={rank} {why}" in late.err
                assert f"node.rank={rank} {why}" in zero.said()[0]
            assert zero.process.poll() is None and one.process.poll() is None, "the run goes on"
            (kept,) = Path(place).glob("samestep-node-1-*")
            assert sweep() == [] and kept.exists()
            one.process.kill()
            assert "went missing" in zero.wait().expect(1).err
            until(lambda: not marked(one.mark), 20, "its ranks are gone")
            assert sweep() == [kept] or not kept.exists()
