"""A plan for people to read, with the table of equivalent batch sizes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from runner.build import BUILT_IN, build
from runner.counts import counted
from runner.plan import Memory, Plan, Seconds, Sizes
from runner.schema import Task
from runner.surroundings import Link

WORKERS = (1, 2, 8)  # one device, two, and a pod of eight: the guide's columns


def sizes_of(task: Task, load: bool) -> Sizes | None:
    """Items and parameters of a task. Built-in tasks tell without torch; any other one only where `load` allows to
    make it, which imports torch and reads the data."""
    if not load and not task.target.startswith(BUILT_IN):
        return None
    made = build(task.target, **task.arguments)
    told = made.sizes() if hasattr(made, "sizes") else None
    if told is not None or not load:
        return told
    counts = [p.numel() for p in made.model().parameters() if p.requires_grad]
    return Sizes(items=len(made.train_data()), parameters=sum(counts), last=counts[0] if counts else 0)


def show_plan(plan: Plan) -> None:
    """Print the plan."""
    console, a, c = Console(), plan.arithmetic, plan.config
    unknown = "known once the data is loaded (plan --load)"
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("task", c.task.target)
    table.add_row(
        "hardware",
        f"{a.processes} x {c.hardware.device.value} on {counted(a.nodes, 'node')}, {c.hardware.parallel.value}",
    )
    table.add_row(
        "observed batch",
        f"{a.observed} = {a.per_device} per device x {counted(a.processes, 'process')} x accum {a.accum}",
    )
    table.add_row("training items", f"{a.items:,}" if a.items is not None else unknown)
    per_epoch = f" ({a.updates_per_epoch} an epoch)" if a.updates_per_epoch is not None else ""
    table.add_row("updates", f"{a.updates:,}{per_epoch}" if a.updates is not None else unknown)
    table.add_row(
        "learning rate",
        f"{a.lr:g}, {c.schedule.name}" + (f", warm-up {c.schedule.warmup}" if c.schedule.warmup else ""),
    )
    table.add_row("precision, seeding", f"{c.precision.name.value}, {c.seeding.mode.value}, seed {c.seed}")
    if c.link.chosen:
        table.add_row("link", link_text(c.link))
    table.add_row("sync", f"{c.sync.policy.value}: the gradient {_times(plan.comm.reductions)}")
    if plan.comm.bytes is not None:
        most = "up to " if plan.comm.collectives != plan.comm.reductions else ""  # buckets are made of whole parameters
        table.add_row(
            "collectives, bytes", f"{most}{plan.comm.collectives}, {plan.comm.bytes:,} an update (full window)"
        )
    if plan.seconds is not None and a.processes > 1:
        table.add_row("on the link", _reduction(plan.seconds))
    if plan.seconds is not None and plan.seconds.update is not None:
        for number, line in enumerate(_seconds(plan.seconds, a.accum)):
            table.add_row("" if number else "seconds (predicted)", line)
    if plan.memory.peak_bytes is not None:
        for number, line in enumerate(_memory(plan.memory)):
            table.add_row("" if number else "peak memory", line)
        for part, size in sorted(plan.memory.parts.items(), key=lambda item: -item[1]):
            table.add_row("", f"{_gib(size)}  {part}")
    table.add_row("experiment, setup", f"{plan.experiment}, {plan.setup}")
    console.print(table)
    console.print(_equivalents(plan))
    for assumption in (*plan.memory.assumptions, *(plan.seconds.assumptions if plan.seconds else ())):
        console.print(f"assumed: {assumption}", markup=False, highlight=False)
    for note in plan.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def link_text(link: Link) -> str:
    """A link in a few words."""
    rest = [
        f"{value:g} {unit}"
        for value, unit in ((link.delay, "ms one way"), (link.jitter, "ms jitter"), (link.loss, "% lost"))
        if value
    ]
    return ", ".join([f"{link.name}: {link.rate:g} Mbit/s", *rest, *(["simulated"] if link.simulate else [])])


def _equivalents(plan: Plan) -> Table:
    """The guide's table for this experiment: what a batch size per device means on one device, two, and eight."""
    a = plan.arithmetic
    table = Table(box=None, pad_edge=False, title="Equivalent batch sizes (accum 1)", title_justify="left")
    table.add_column("")
    for n in WORKERS:
        table.add_column("single process" if n == 1 else f"{n} {'processes' if n == 2 else 'workers'}", justify="right")
    same = [f"{a.observed // n}" if a.observed % n == 0 else "-" for n in WORKERS]
    table.add_row(f"per device, for an observed batch of {a.observed}", *same)
    table.add_row(f"observed batch, with {a.per_device} per device", *(str(a.per_device * n) for n in WORKERS))
    return table


def _memory(memory: Memory) -> Iterator[str]:
    """The predicted peak, whether it fits, and what would."""
    assert memory.peak_bytes is not None
    if memory.capacity is None:
        yield f"{_gib(memory.peak_bytes)} on each device"
        return
    yield f"{_gib(memory.peak_bytes)} of {_gib(memory.capacity)} on each device"
    left = memory.capacity - memory.peak_bytes
    yield f"fits, {_gib(left)} to spare" if left >= 0 else f"does not fit, by {_gib(-left)}"
    if memory.advice:
        yield memory.advice


def _reduction(seconds: Seconds) -> str:
    return f"{seconds.algorithm}: {seconds.reduction:.4g} s for the gradient, {seconds.wire_bytes:,} bytes from each process in an update"


def _seconds(seconds: Seconds, accum: int) -> Iterator[str]:
    """The predicted time of an update, and what it is spent on."""
    assert seconds.update is not None and seconds.compute is not None and seconds.waiting is not None
    yield f"{seconds.update:.4g} an update, {seconds.batch:.4g} a batch"
    computing = f"computing takes {accum * seconds.compute:.4g}"
    if not seconds.reduction:
        yield computing
        return
    yield f"{computing}, waiting for the link {seconds.waiting:.4g}; bound by {'the link' if seconds.bound == 'link' else 'computing'}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


def _times(n: int) -> str:
    return {0: "is not sent", 1: "is reduced once an update"}.get(n, f"is reduced {n} times an update")
