"""What is told to `ip` and `tc`: a device for each node, addresses, and how fast it may send.

Two nodes without a delay are joined by one pair of devices. Otherwise every node has a pair of its own, whose other end
lies in a namespace between them: on a bridge, or, where frames are to be late or lost, in the hands of `runner.link.wire`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DEVICE = "ve0"  # the device of a node, in its own namespace
MTU = 1500
BURST = 128 * 1024  # bytes sent at once: with less, the kernel is woken too often
BURST_SECONDS = 0.001  # and with a very fast link, too
QUEUE_SECONDS = 0.05  # what a sender's queue holds before it drops
NODES = 250


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes and the link between them: `rate` in Mbit/s, `delay` and `jitter` in ms one way, `loss` in percent."""

    nodes: int
    rate: float
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0

    @property
    def by_hand(self) -> bool:
        """Whether frames are carried by the wire, which alone can be late or lose them."""
        return bool(self.delay or self.jitter or self.loss)

    @property
    def direct(self) -> bool:
        """Whether one pair of devices joins the nodes."""
        return self.nodes == 2 and not self.by_hand

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def address(node: int) -> str:
    """A node's address, of the range that is set aside for measuring networks."""
    return f"198.18.0.{node + 1}"


def hardware_address(node: int) -> str:
    return f"02:00:00:00:00:{node + 1:02x}"


def port(node: int) -> str:
    """The other end of a node's pair of devices, in the namespace between the nodes."""
    return f"port{node}"


def pairs(shape: Shape, spaces: list[str]) -> list[tuple[int | None, str]]:
    """The commands of `ip` that make the devices, each with the node in whose namespace it is given (None: between them).
    `spaces` are the paths of the nodes' namespaces."""
    if shape.nodes == 1:
        return []
    if shape.direct:
        return [(0, f"link add {DEVICE} type veth peer name {DEVICE} netns {spaces[1]}")]
    return [
        (None, f"link add {port(node)} type veth peer name {DEVICE} netns {space}") for node, space in enumerate(spaces)
    ]


def node_commands(shape: Shape, node: int) -> list[str]:
    """The commands of `ip` inside a node. Neighbours are written down, so that nobody has to ask for them."""
    commands = ["link set lo up"]
    if shape.nodes == 1:
        return commands
    alone = " gso_max_segs 1" if shape.loss else ""  # one frame at a time: a loss is of one
    commands.append(f"link set {DEVICE} address {hardware_address(node)} addrgenmode none mtu {MTU}{alone} up")
    commands.append(f"addr add {address(node)}/24 dev {DEVICE}")
    for other in range(shape.nodes):
        if other != node:
            commands.append(f"neigh add {address(other)} lladdr {hardware_address(other)} dev {DEVICE} nud permanent")
    return commands


def between_commands(shape: Shape, bridge: bool) -> list[str]:
    """The commands of `ip` in the namespace between the nodes."""
    commands = ["link add bridge0 type bridge", "link set bridge0 addrgenmode none up"] if bridge else []
    for node in range(shape.nodes):
        commands.append(f"link set {port(node)} addrgenmode none up" + (" master bridge0" if bridge else ""))
    return commands


def rate_command(shape: Shape, device: str) -> str:
    """The command of `tc` that limits what a device sends."""
    bits = round(shape.rate * 1e6)
    burst = max(BURST, round(bits / 8 * BURST_SECONDS))
    return f"qdisc add dev {device} root tbf rate {bits}bit burst {burst}b latency {QUEUE_SECONDS * 1e3:g}ms"
