"""What the doctor says of machines that are described to it, of sweeps whose line is known, of wrong command lines."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.compose.links import read_link
from runner.doctor import command, judging, machine
from runner.doctor.checks import check
from runner.doctor.fit import fit, link_yaml, write_link
from runner.doctor.machine import Machine
from runner.doctor.reach import Door, Way, try_door
from runner.doctor.sweep import SIZES, Outcome
from runner.errors import ConfigError, RunnerError
from runner.predict.allreduce import path_of

SOUND = Machine(
    host="a", system="Linux 6", python="3.11.7", samestep="0.1.0", torch="2.13.0", torch_build="cpu", cores=8, quota=None,
    memory=2**35, memory_limit=None, gpus=0, driver=None, compiler="/usr/bin/g++", interfaces=(("lo", "127.0.0.1"), ("eth0", "10.0.0.5")),
    host_address="10.0.0.5", shared_memory=2**33, open_files=65536, processes=None, time_zone="UTC +0000", synchronized=True,
    namespaces=None,
)  # fmt: skip

WRONG: dict[str, dict[str, Any]] = {
    "torch is not installed": {"torch": None, "torch_build": None},
    "a build without CUDA": {"gpus": 2},
    "2.5 at a time may be used. Give the container more, or set hardware.threads=2": {"quota": 2.5},
    "/dev/shm has 64 MiB": {"shared_memory": 2**26},
    "256 open files": {"open_files": 256},
}
NOTED: dict[str, dict[str, Any]] = {
    "no C++ compiler": {"compiler": None},
    "link.simulate=true": {"namespaces": "only root may"},
    "clock": {"synchronized": False},
    "no interface but loopback": {"interfaces": (("lo", "127.0.0.1"),)},
    "stands for 127.0.1.1 here. As rendezvous give an address that other machines reach, 10.0.0.5 say": {
        "host_address": "127.0.1.1"
    },
    "2.0 may be used": {"memory_limit": 2**31},
    "no GPU is visible": {"torch_build": "cuda 12.8"},
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_said_of_a_sound_machine() -> None:
    assert list(check(SOUND)) == []


@pytest.mark.parametrize("said", [*WRONG, *NOTED])
def test_one_thing_that_is_not_sound(said: str) -> None:
    (found,) = check(replace(SOUND, **(WRONG | NOTED)[said]))
    assert said in str(found)
    assert found.wrong == (said in WRONG)
    assert found.cure and "\n" not in str(found)


def test_a_variable_that_names_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    (found,) = check(SOUND)
    assert found.wrong and "GLOO_SOCKET_IFNAME=ib0" in found.what and "lo, eth0" in found.what
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert not list(check(SOUND))


def test_this_machine_as_it_is() -> None:
    here = machine.look()
    assert here.cores >= 1 and here.memory and here.memory > 2**28
    assert here.torch is not None and here.torch_build is not None
    assert ("lo", "127.0.0.1") in here.interfaces
    assert len(machine.lines(here)) == 5


def line(alpha: float, rate: float, processes: int = 2) -> list[tuple[int, float]]:
    steps = 2 * (processes - 1)
    return [(n, steps * (alpha + n / processes / rate)) for n in SIZES]


@pytest.mark.parametrize("processes", [2, 4])
def test_a_sweep_on_a_line_gives_the_line_back(processes: int) -> None:
    found = fit(processes, line(2e-4, 4e7, processes))
    assert found.way.alpha == pytest.approx(2e-4, rel=0.01)
    assert found.way.rate == pytest.approx(4e7, rel=0.01)
    assert found.worst < 0.01


def test_what_lies_off_the_line_is_told_and_moves_it_little() -> None:
    points = line(2e-4, 4e7)
    points[6] = (points[6][0], points[6][1] / 3)  # a burst that the queue lets through
    found = fit(2, points)
    assert found.way.rate == pytest.approx(4e7, rel=0.01)
    assert found.where == points[6][0] and found.worst == pytest.approx(2.0, rel=0.05)
    with pytest.raises(RunnerError, match="too few"):
        fit(2, points[:5])


def test_a_link_file_stands_for_the_way_that_was_measured(tmp_path: Path) -> None:
    found = fit(2, line(7e-3, 4e7))
    file = tmp_path / "link.yaml"
    write_link(file, link_yaml(found, "between 2 nodes"))
    way = path_of(read_link("--link", str(file)))
    assert way.alpha == pytest.approx(7e-3, rel=0.01)
    assert way.rate == pytest.approx(4e7, rel=0.01)
    write_link(file, link_yaml(found, "again"))
    file.write_text("name: ours\nrate: 1\n")
    with pytest.raises(RunnerError, match="not from a doctor"):
        write_link(file, link_yaml(found, "between 2 nodes"))
    assert file.read_text() == "name: ours\nrate: 1\n"


def test_a_door_is_known_by_its_word() -> None:
    door = Door("127.0.0.1")
    assert try_door("127.0.0.1", door.port, door.word) == Way("open")
    assert try_door("127.0.0.1", door.port, "0" * 32) == Way("stranger"), "another machine at the same address"
    door.close()
    assert try_door("127.0.0.1", door.port, door.word) == Way("refused")


FACTS: dict[int, dict[str, Any]] = {
    n: {
        "host": f"h{n}", "samestep": "0.1.0", "torch": "2.13.0", "python": "3.11", "code": "c", "build": "cpu", "cores": 2, "gpus": 0,
        "on_the_way": f"10.0.0.{n}", "address": f"10.0.0.{n}", "interface": "eth0", "variable": None,
    }
    for n in (0, 1)
}  # fmt: skip


def test_versions_that_differ() -> None:
    assert list(judging.versions(FACTS[0], FACTS[1], 1)) == []
    for name, value in (("torch", "2.9.0"), ("python", "3.12"), ("code", "d"), ("build", "cuda 12.8")):
        (found,) = judging.versions(FACTS[0], FACTS[1] | {name: value}, 1)
        assert found.wrong and "node 1 (h1)" in found.what and (value in found.what or name == "code")
    (found,) = judging.versions(FACTS[0], FACTS[1] | {"gpus": 4}, 1)
    assert not found.wrong and "4 GPUs" in found.what


def test_clocks_that_differ() -> None:
    assert list(judging.clocks(1, 0.4, 0.0)) == list(judging.clocks(1, -0.7, 0.3)) == []
    (found,) = judging.clocks(1, -7.0, 0.001)
    assert found.wrong and "7.0 s behind" in found.what


def test_ways_that_are_closed() -> None:
    door = {"address": "10.0.0.1", "port": 41000}
    said = {
        how: str(judging.no_way(0, 1, FACTS, door, Way(how, "no route")))
        for how in ("silent", "refused", "stranger", "error")
    }
    for text in said.values():
        assert "node 0 (h0) cannot connect to node 1 (h1) at 10.0.0.1, port 41000" in text
    assert "firewall drops" in said["silent"] and "from node 0 to node 1" in said["silent"]
    assert "rejects" in said["refused"] and "no route" in said["error"]
    lost = FACTS | {1: FACTS[1] | {"address": "127.0.0.1", "variable": "lo"}}
    found = judging.no_way(0, 1, lost, {"address": "127.0.0.1", "port": 41000}, Way("refused"))
    assert "unset GLOO_SOCKET_IFNAME on node 1" in found.cure


def test_rendezvous_that_others_do_not_reach() -> None:
    assert list(judging.interfaces(FACTS)) == []
    (found,) = judging.interfaces(FACTS | {0: FACTS[0] | {"on_the_way": "127.0.0.1", "address": "127.0.0.1"}})
    assert found.wrong and "other machines do not reach" in found.what
    assert "only this machine reaches" in judging.absent(1, "127.0.0.1", 29400, 5).what
    assert "open to it for TCP" in judging.absent(1, "10.0.0.5", 29400, 5).cure


def test_packets_of_full_size_that_are_lost() -> None:
    stuck = judging.sweep_failed(Outcome([(4, 0.1), (1024, 0.1)], "it took more than 60 s"))
    assert "same MTU" in stuck.cure
    assert "MTU" not in judging.sweep_failed(Outcome([], "refused")).cure


def test_first_nodes_that_do_not_answer() -> None:
    for error, said in (
        (TimeoutError(), "firewall drops"),
        (ConnectionRefusedError(), "nothing listens"),
        (OSError(113, "No route"), "No route"),
    ):
        assert said in str(judging.unreachable(1, "10.0.0.5", 29400, error, 3))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("node.rank=1", "must be told where they meet"),
        ("hardware.nodes=2", "must be told where they meet"),
        ("rendezvous=10.0.0.5:29400", "no effect on one node"),
        ("hardware.nodes=2 rendezvous=nowhere", "'nowhere' is no HOST:PORT"),
        ("hardware=2gpu", "names no nodes"),
        ("node.rank=x rendezvous=a:1", "'x' is no number"),
        ("hardware.nodes=0", "'0' is no number"),
        ("node.wait=-1 node.rank=1 rendezvous=a:1", "no number of seconds"),
        ("acum=4", "is nothing that doctor takes"),
        ("--load", "is nothing that doctor takes"),
    ],
)
def test_wrong_command_lines(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        command.read(typed.split())


def test_command_lines() -> None:
    asked = command.read(
        ["hardware=3node", "node.rank=2", "rendezvous=host:29400", "node.wait=5", "out=x.yaml", "--json"]
    )
    assert (asked.nodes, asked.rank, asked.wait, asked.out, asked.as_json) == (3, 2, 5.0, Path("x.yaml"), True)
    assert asked.where == ("host", 29400)
    assert command.read([]) == command.Asked()


def test_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "warm_up", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.run(["hardware.nodes=2", f"rendezvous=127.0.0.1:{port}"]) == 1
    out = capsys.readouterr().out
    assert f"cannot listen at 127.0.0.1:{port}" in out and "a port that is free" in out
    assert command.run(["node.rank=1", f"rendezvous=127.0.0.1:{port}", "node.wait=0.1"]) == 1
    assert "nothing listens at 127.0.0.1" in capsys.readouterr().out
