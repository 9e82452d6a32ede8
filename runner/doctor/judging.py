"""What the nodes of a run say of each other, judged: one finding for each thing that keeps them apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.doctor.findings import Finding
from runner.doctor.reach import LIMIT, Way
from runner.doctor.sweep import FRAME, Outcome
from runner.launch.introduction import VERSIONS

Facts = Mapping[str, Any]

CLOCKS = 0.5  # seconds apart: more, and which of two nodes failed first can no longer be told from what they write


def versions(first: Facts, other: Facts, number: int) -> Iterator[Finding]:
    """What is installed must be the same everywhere: a run refuses a node with anything else."""
    for name in VERSIONS:
        if first[name] != other.get(name):
            what = (
                f"node {number} ({other['host']}) has other code of Samestep's than node 0 ({first['host']})"
                if name == "code"
                else f"node {number} ({other['host']}) has {name} {other.get(name)}, node 0 ({first['host']}) has {first[name]}"
            )
            yield Finding(what, f"Install the same {'version' if name == 'code' else name} on both")
    if first["build"] != other.get("build") and first["torch"] == other.get("torch"):
        what = f"torch on node {number} ({other['host']}) is a build for {other.get('build')}, on node 0 for {first['build']}"
        yield Finding(what, "Install the same build on both, or run on what both have")
    for name, noun in (("gpus", "GPUs"), ("cores", "CPU cores")):
        if first[name] != other.get(name):
            what = f"node {number} ({other['host']}) has {other.get(name)} {noun}, node 0 ({first['host']}) has {first[name]}"
            yield Finding(what, "All nodes get as many processes, and the slowest sets the pace", wrong=False)


def clocks(number: int, offset: float, unsure: float) -> Iterator[Finding]:
    """The clock of a node is `offset` seconds ahead of the first one's, give or take `unsure`."""
    if abs(offset) - unsure > CLOCKS:
        which = "ahead of" if offset > 0 else "behind"
        what = f"the clock of node {number} is {abs(offset):.1f} s {which} that of node 0 (give or take {unsure:.3f} s)"
        yield Finding(what, "Start chronyd or systemd-timesyncd on both")


def interfaces(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    """An interface that gloo would take although the way to the other nodes is another."""
    hosts = {f["host"] for f in facts.values()}
    for number, mine in facts.items():
        named, way = mine["variable"], mine["on_the_way"]
        if named and mine["address"] != way:
            what = f"GLOO_SOCKET_IFNAME={named} on node {number} stands for {mine['address']}; the way to the other nodes is by {way}"
            yield Finding(what, f"unset GLOO_SOCKET_IFNAME on node {number} unless that is meant", wrong=False)
        elif not named and mine["interface"] is None:
            what = (
                f"{way} on node {number} is not the first address of an interface, so gloo cannot be told which to take"
            )
            yield Finding(what, "Set GLOO_SOCKET_IFNAME there to the interface of that address")
    if len(hosts) > 1 and facts[0]["on_the_way"].startswith("127."):
        what = f"the rendezvous is {facts[0]['on_the_way']} of node 0, which other machines do not reach"
        yield Finding(what, "As rendezvous give an address of node 0 that they do")


def absent(number: int, address: str, port: int, seconds: float) -> Finding:
    """A node that never came."""
    typed = f"type there: python -m runner doctor node.rank={number} rendezvous={address}:{port}"
    if address.startswith("127."):
        what = f"no sign of node {number} after {seconds:g} s at {address}, which only this machine reaches"
        return Finding(what, f"As rendezvous give an address of this machine that others reach, and {typed}")
    what = f"no sign of node {number} after {seconds:g} s"
    return Finding(what, f"See that it runs ({typed}) and that port {port} of {address} is open to it for TCP")


def translated(number: int, own: str, seen: str) -> Finding:
    what = f"node {number} calls itself {own} and comes as {seen}: addresses are translated in between"
    return Finding(what, "gloo tells its own address to others, so join the nodes by a network without NAT, or a VPN")


def no_door(number: int, facts: Facts, error: str) -> Finding:
    what = f"node {number} ({facts['host']}) cannot listen at {facts['address']} ({error})"
    return Finding(what, "Set GLOO_SOCKET_IFNAME there to an interface that is up")


def no_way(source: int, target: int, facts: Mapping[int, Facts], door: Facts, way: Way) -> Finding:
    """Why node `source` cannot connect to an open port of node `target`."""
    address, port = door["address"], door["port"]
    there = f"node {target} ({facts[target]['host']}) at {address}, port {port}"
    start = f"node {source} ({facts[source]['host']}) cannot connect to {there}"
    if address != facts[target]["on_the_way"]:
        return Finding(
            f"{start}, which GLOO_SOCKET_IFNAME={facts[target]['variable']} stands for there",
            f"unset GLOO_SOCKET_IFNAME on node {target}, or name the interface of {facts[target]['on_the_way']}",
        )
    if way.how == "stranger":
        return Finding(f"{start}: something else answers there", "Give an address that is node 0's own as rendezvous")
    cure = f"Open all TCP ports from node {source} to node {target}: gloo and the store of a run choose theirs freely"
    if way.how == "silent":
        return Finding(f"{start}: nothing comes back in {LIMIT:g} s, as when a firewall drops what is sent", cure)
    if way.how == "refused":
        return Finding(f"{start}: refused, though it is open there, as by a firewall that rejects", cure)
    return Finding(f"{start}: {way.detail}", f"See that there is a route from node {source} to {address}")


def sweep_failed(outcome: Outcome) -> Finding:
    """All-reduces did not come to an end."""
    done = outcome.points[-1][0] if outcome.points else 0
    if 0 < done <= FRAME:
        what = f"all-reduces of up to {done} bytes pass between the nodes, larger ones do not ({outcome.error})"
        return Finding(what, "Packets of full size are lost: set the same MTU on all interfaces in between")
    return Finding(
        f"an all-reduce between the nodes failed ({outcome.error})", "Mend what is said above first, if anything is"
    )


def sweep_short(why: str) -> Finding:
    return Finding(f"the sweep tells nothing: {why}", "Run it again when the link is free", wrong=False)


def unreachable(rank: int, host: str, port: int, error: OSError, seconds: float) -> Finding:
    """The first node does not answer."""
    typed = f"python -m runner doctor hardware.nodes=2 node.rank=0 rendezvous={host}:{port}"
    if isinstance(error, TimeoutError):
        what = f"nothing comes back from {host}, port {port}, as when a firewall drops what node {rank} sends to node 0"
        return Finding(what, f"Open that port for TCP on node 0, and see that it is node 0's address; there: {typed}")
    if isinstance(error, ConnectionRefusedError):
        what = f"nothing listens at {host}, port {port}, after {seconds:g} s (or a firewall rejects it)"
        return Finding(what, f"Type on the machine of that address: {typed}")
    what = f"{host}, port {port}, cannot be reached from here ({error.strerror or error})"
    return Finding(what, "See that it is node 0's address and that there is a route to it (ip route get ADDRESS)")
