"""`doctor`: its arguments, what it prints, its exit code: 0 nothing is wrong, 1 something is."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from runner.counts import counted
from runner.doctor import judging, machine, sweep
from runner.doctor.checks import check
from runner.doctor.findings import Finding
from runner.doctor.first import First
from runner.doctor.fit import Measured, fit, hindrance, link_yaml, write_link
from runner.doctor.machine import Machine
from runner.doctor.other import Answers
from runner.endpoint import endpoint
from runner.errors import ConfigError, Problem, RunnerError
from runner.launch.peer import Peer
from runner.launch.warm import warm_up

KEYS = ("hardware", "hardware.nodes", "node.rank", "node.wait", "rendezvous", "out")
LOCAL = 2  # processes of a sweep on one machine
UNSTEADY = 1.0  # how far off a measured size may be before it is told


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line, read. `wait` is how many seconds nodes wait for each other."""

    nodes: int = 1
    rank: int = 0
    wait: float = 60.0
    rendezvous: str | None = None
    out: Path = Path("link.yaml")
    as_json: bool = False

    @property
    def where(self) -> tuple[str, int]:
        found = endpoint(self.rendezvous or "")
        assert found is not None, "checked when it was read"
        return found


def run(arguments: Sequence[str]) -> int:
    """Look, ask, measure; print what was found. Returns the exit code; raises ConfigError for a wrong command line."""
    asked = read(arguments)
    here = machine.look()
    report = _Report(asked.as_json, here)
    if here.torch is not None:
        warm_up()  # torch is loaded while the rest is looked at
    for finding in check(here):
        report.add(finding)
    try:
        if asked.rank:
            _other(asked, here, report)
        elif asked.nodes > 1:
            _first(asked, here, report)
        elif here.torch is not None:
            _alone(asked, report)
    except RunnerError as error:
        report.add(Finding(str(error), ""))
    return report.close()


def read(arguments: Sequence[str]) -> Asked:
    """Read a command line. Raises ConfigError with all that is wrong with it."""
    values: dict[str, str] = {}
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument == "--json":
            values["--json"] = ""
        elif key in KEYS and equals:
            values[key] = value
        else:
            problems.append(
                Problem(argument, "is nothing that doctor takes", f"It takes {', '.join(KEYS)} (=VALUE) and --json")
            )
    nodes = values.get("hardware.nodes", "1")
    if "hardware" in values:
        found = re.fullmatch(r"(\d+)node", values["hardware"])
        nodes = found[1] if found else nodes
        if not found:
            problems.append(
                Problem(
                    "hardware", f"'{values['hardware']}' names no nodes", "Type hardware=2node, or hardware.nodes=2"
                )
            )
    numbers = {"hardware.nodes": nodes, "node.rank": values.get("node.rank", "0")}
    for key, text in numbers.items():
        if not text.isdigit() or (key == "hardware.nodes" and int(text) == 0):
            problems.append(
                Problem(key, f"'{text}' is no number of {'nodes' if key == 'hardware.nodes' else 'a node'}")
            )
    wait, where = values.get("node.wait", "60"), values.get("rendezvous")
    try:
        seconds = float(wait)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        problems.append(Problem("node.wait", f"'{wait}' is no number of seconds above 0"))
    if where is not None and endpoint(where) is None:
        problems.append(Problem("rendezvous", f"'{where}' is no HOST:PORT", "Type rendezvous=10.0.0.5:29400, say"))
    out = Path(values.get("out", "link.yaml"))
    if (hindered := hindrance(out)) is not None:
        problems.append(Problem("out", hindered, "Name another file: out=FILE"))
    if problems:
        raise ConfigError(problems)
    rank, count = int(numbers["node.rank"]), int(nodes)
    if where is None and (rank or count > 1):
        fix = "Type rendezvous=HOST:PORT on all nodes, with an address of the one with node.rank=0"
        raise ConfigError([Problem("rendezvous", "the nodes must be told where they meet", fix)])
    if where is not None and not rank and count == 1:
        raise ConfigError([Problem("rendezvous", f"{where} has no effect on one node", "Add hardware.nodes=2")])
    return Asked(count, rank, seconds, where, out, "--json" in values)


def _alone(asked: Asked, report: _Report) -> None:
    report.say(f"all-reduces between {LOCAL} processes of this machine ...")
    outcome = sweep.locally(LOCAL)
    if outcome.error is not None:
        what = f"an all-reduce between {LOCAL} processes of this machine failed ({outcome.error})"
        report.add(Finding(what, "See that loopback is up: ip link set lo up"))
        return
    _measured(asked, report, fit(LOCAL, outcome.points), f"between {LOCAL} processes of one machine")


def _first(asked: Asked, here: Machine, report: _Report) -> None:
    with _first_node(asked, here) as (first, found):
        report.say(
            f"waiting for {asked.nodes - 1} more: python -m runner doctor node.rank=1 rendezvous={asked.rendezvous}"
        )
        for finding in first.gather(asked.wait):
            found.append(report.add(finding))
        for finding in first.examine():
            found.append(report.add(finding))
        report.nodes = {n: facts for n, facts in first.facts.items() if n}
        if len(first.facts) < asked.nodes:
            return
        if first.apart:
            report.say("no all-reduces: not all nodes reach each other")
            return
        report.say(f"all-reduces between {asked.nodes} nodes ...")
        measured, more = first.sweep()
        for finding in more:
            found.append(report.add(finding))
        if measured is not None:
            _measured(asked, report, measured, f"between {asked.nodes} nodes")


@contextmanager
def _first_node(asked: Asked, here: Machine) -> Iterator[tuple[First, list[Finding]]]:
    """The first node, and what it finds, which the others are told in the end. Raises RunnerError where it cannot listen."""
    host, port = asked.where
    try:
        first = First(here, socket.gethostbyname(host), port, asked.nodes)
    except OSError as error:
        fix = "As rendezvous give an address of this machine, and a port that is free"
        raise RunnerError(
            f"this machine cannot listen at {asked.rendezvous} ({error.strerror or error}). {fix}"
        ) from error
    found: list[Finding] = []
    try:
        yield first, found
    finally:
        first.close(found)


def _other(asked: Asked, here: Machine, report: _Report) -> None:
    first = connect(asked, report.say)
    if isinstance(first, Finding):
        report.add(first)
        return
    try:
        for finding in Answers(asked.rank, first, here).serve():
            report.add(finding)
    finally:
        first.close()


def connect(asked: Asked, say: Callable[[str], None]) -> Peer | Finding:
    """The first node, once it is there; else why it cannot be reached."""
    deadline, told = time.monotonic() + asked.wait, False
    while True:
        try:
            return Peer(socket.create_connection(asked.where, timeout=5.0), f"the first node at {asked.rendezvous}")
        except socket.gaierror:
            what = f"the name in rendezvous={asked.rendezvous} is unknown here"
            return Finding(what, "Give the address of the node with node.rank=0 instead")
        except OSError as error:
            failed = error
        if time.monotonic() >= deadline:
            return judging.unreachable(asked.rank, *asked.where, failed, asked.wait)
        if not told:
            told = True
            say(f"waiting for the first node at {asked.rendezvous}")
        time.sleep(0.3)


def _measured(asked: Asked, report: _Report, measured: Measured, between: str) -> None:
    report.measured = measured
    write_link(asked.out, link_yaml(measured, between))
    report.say(
        f"{between}: {measured.way.alpha * 1e3:.3f} ms a message, {measured.mbit:,.1f} Mbit/s, from {len(measured.points)} sizes "
        f"(at most {measured.worst:.0%} off, at {measured.where:,} bytes); python -m runner plan --link {asked.out} uses it"
    )
    if measured.worst > UNSTEADY:
        what = f"two numbers do not describe what was measured ({measured.worst:.0%} off, at {measured.where:,} bytes)"
        report.add(
            Finding(
                what,
                "Other work on the machines or the network disturbs it: run it again when they are idle",
                wrong=False,
            )
        )


class _Report:
    """What is printed: lines as they come, or one JSON object in the end."""

    def __init__(self, as_json: bool, here: Machine):
        self._as_json, self._here = as_json, here
        self._found: list[Finding] = []
        self.nodes: dict[int, dict[str, Any]] = {}
        self.measured: Measured | None = None
        for line in machine.lines(here):
            self.say(line)

    def say(self, line: str) -> None:
        if not self._as_json:
            print(line, flush=True)

    def add(self, finding: Finding) -> Finding:
        if finding not in self._found:
            self._found.append(finding)
            self.say(str(finding))
        return finding

    def close(self) -> int:
        """The last word. Returns the exit code."""
        wrong = sum(f.wrong for f in self._found)
        if self._as_json:
            m = self.measured
            link = m and {"alpha": m.way.alpha, "mbit": m.mbit, "worst": m.worst, "points": m.points}
            found = [f.as_json() for f in self._found]
            nodes = {str(n): facts for n, facts in self.nodes.items()}
            print(
                json.dumps({"machine": self._here.as_json(), "nodes": nodes, "findings": found, "link": link}, indent=2)
            )
        else:
            print(
                "nothing is wrong" if not wrong else f"{counted(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong"
            )
        return 1 if wrong else 0
