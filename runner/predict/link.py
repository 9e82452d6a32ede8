"""Seconds of an update over a link: a measured pace of computing, the alpha-beta model of the link, and what of the one
hides behind the other. Pure arithmetic: no torch, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.buckets import DEFAULT
from runner.choices import CompressName, Device, PrecisionName, SeedingMode, SyncPolicy
from runner.counts import counted
from runner.plan import CARRIER_ELEMENTS, Plan, Seconds, Sizes
from runner.predict import allreduce
from runner.predict.allreduce import ALGORITHMS, Path, Shape, path_of
from runner.predict.overlap import after_backward, buckets_of
from runner.predict.pace import Pace
from runner.surroundings import Link

# Between the processes of a node where nothing is said: what gloo does over loopback, and an A100's NVLink
LOOPBACK = Path(allreduce.HOP, 2.6e9 / 8)
NVLINK = Path(1e-5, 300e9)


def predict(plan: Plan, sizes: Sizes, pace: Pace | None, inside: Link | None = None) -> Seconds | None:
    """The seconds of an update and of a micro-batch over the plan's link; `inside` joins the processes of a node (else what
    their kind of device has). None where the plan does not say how its nodes are joined, shards the model, or sends
    what depends on the shapes of its parameters (powersgd)."""
    shape = shape_of(plan, inside)
    if shape is None or not predictable(plan):
        return None
    arithmetic = plan.arithmetic
    name, size = algorithm_of(plan, shape, sizes), gradient_bytes(plan, sizes)
    reduction = reduction_of(plan, shape, sizes, name, backward=0.0)
    reductions, hidden = reductions_of(plan)
    facts = {"algorithm": name, "reduction": reduction, "wire_bytes": round(_wire(plan, name, size) * reductions)}
    assumed = list(_assumptions(plan, shape, pace, inside))
    if pace is None:
        return Seconds(**facts, assumptions=tuple(assumed))
    pace = pace.scaled_to(arithmetic.per_device)
    waiting = reductions * reduction_of(plan, shape, sizes, name, pace.micro * pace.backward * hidden)
    compute = arithmetic.accum * pace.micro
    return Seconds(
        **facts,
        compute=pace.micro,
        waiting=waiting,
        batch=(compute + waiting) / arithmetic.accum,
        update=compute + waiting + pace.tail,
        bound="link" if reductions * reduction > compute else "compute",
        assumptions=tuple(assumed),
    )


def predictable(plan: Plan) -> bool:
    """Whether what a plan sends follows from the number of its parameters alone."""
    return not plan.config.hardware.sharded and plan.config.compress.name is not CompressName.powersgd


def reductions_of(plan: Plan) -> tuple[float, bool]:
    """Reductions of a window, on average, and whether a backward hides some of each: local_sgd averages weights, once
    every so many updates and after them."""
    sync = plan.config.sync
    if sync.policy is SyncPolicy.local_sgd:
        return 1 / (sync.every or 1), False
    return (1 if sync.policy.reduces_once else plan.arithmetic.accum), True


def shape_of(plan: Plan, inside: Link | None = None, always: bool = False) -> Shape | None:
    """How the processes are joined; None where nothing is known of the way between the nodes: of those that the plan
    has, or, `always`, of those that a larger one would have."""
    hardware, link = plan.config.hardware, plan.config.link
    near = path_of(inside) if inside else NVLINK if hardware.device is Device.cuda else LOOPBACK
    if link.rate is None and (hardware.nodes > 1 or always):
        return None
    return Shape(hardware.processes, hardware.nodes, near, path_of(link) if link.rate else near)


def gradient_bytes(plan: Plan, sizes: Sizes) -> int:
    """What one reduction sends: the gradient, and the window's loss total and weight."""
    return sizes.parameters * _sent(plan) + CARRIER_ELEMENTS * _element(plan)


def _element(plan: Plan) -> int:
    return 8 if plan.config.precision.name is PrecisionName.fp64 else 4


def _sent(plan: Plan) -> int:
    """Bytes of one number of the gradient on its way."""
    return _element(plan) if plan.config.compress.name is CompressName.none else 2


def bucket_bytes(plan: Plan) -> int:
    """What one collective sends."""
    return round((plan.comm.bucket_bytes or DEFAULT) * _sent(plan) / _element(plan))


def algorithm_of(plan: Plan, shape: Shape, sizes: Sizes) -> str:
    """The all-reduce that would run: recursive doubling where every bit is to be the same, a flat ring under gloo, under NCCL
    what is fastest on paper."""
    if plan.config.seeding.mode is SeedingMode.bitwise:
        return "recursive doubling"
    if plan.config.hardware.device is Device.cpu:
        return "ring"
    return allreduce.best(shape, min(gradient_bytes(plan, sizes), bucket_bytes(plan)))


def reduction_of(plan: Plan, shape: Shape, sizes: Sizes, name: str, backward: float) -> float:
    """Seconds of one reduction of the whole gradient that come after a backward of so many."""
    if shape.processes == 1:
        return 0.0
    size = gradient_bytes(plan, sizes)
    bucket = bucket_bytes(plan)
    last = size * sizes.last / max(1, sizes.parameters)
    return after_backward(backward, buckets_of(size, bucket, last), lambda part: _time(name, shape, part))


def _time(name: str, shape: Shape, size: float) -> float:
    if name == "recursive doubling":
        return allreduce.doubling(shape.processes, shape.slowest, size)
    return ALGORITHMS[name](shape, size)


def _wire(plan: Plan, name: str, size: int) -> float:
    """The bytes that one process sends for a reduction."""
    n = plan.arithmetic.processes
    if name == "recursive doubling":
        return (n.bit_length() - 1) * size
    return allreduce.on_the_wire(n, size) if n > 1 else 0


def _assumptions(plan: Plan, shape: Shape, pace: Pace | None, inside: Link | None) -> Iterator[str]:
    hardware, chosen = plan.config.hardware, plan.config.link
    if shape.nodes > 1:
        yield f"{_described(shape.between)} between nodes (link={chosen.name}), a way out for each node, shared by its processes"
        if chosen.loss:
            yield f"{chosen.loss:g}% loss lets one TCP connection keep up no more than this; it was not measured"
    if shape.local > 1:
        what = f"by {inside.name}" if inside else "NVLink of an A100" if hardware.device is Device.cuda else "loopback"
        yield f"{_described(shape.inside)} between the processes of a node ({what})"
    if pace is None:
        return
    yield f"a micro-batch computes for {pace.micro:.4g} s, of which {pace.backward:.0%} are its backward, as in {pace.source}"
    if pace.per_device != plan.arithmetic.per_device:
        yield f"there it had {counted(pace.per_device, 'item')}, here it has {plan.arithmetic.per_device}: time grows as they do"


def _described(path: Path) -> str:
    rate = path.rate * 8 / 1e6
    return f"{f'{rate / 1000:.3g} Gbit/s' if rate >= 1000 else f'{rate:.3g} Mbit/s'} and {path.alpha * 1e3:.3g} ms a message"
