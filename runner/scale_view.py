"""The table of `plan --scale`: one experiment on 8 to 4096 devices."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from runner.choices import Device
from runner.counts import counted
from runner.plan import Plan, Sizes
from runner.predict.allreduce import ALGORITHMS, Shape
from runner.predict.link import gradient_bytes
from runner.predict.scale import Row


def show_scale(plan: Plan, sizes: Sizes, shape: Shape, rows: Sequence[Row]) -> None:
    """Print the rows, and what they assume."""
    console = Console()
    size = gradient_bytes(plan, sizes) / 1e6
    title = f"All-reduce of {size:.4g} MB, in seconds (formulae: docs/scaling.md)"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    timed = rows[0].update is not None
    for name in ("devices", "nodes", *ALGORITHMS, *(("update", "efficiency") if timed else ())):
        table.add_column(name, justify="right", no_wrap=name in ("update", "efficiency"))
    for row in rows:
        cells = [f"{row.seconds[n]:.4g}{' *' if n == row.fastest else '  '}" for n in ALGORITHMS]
        if row.update is not None and row.efficiency is not None:
            cells += [f"{row.update:.4g}", f"{row.efficiency:.0%}"]
        table.add_row(f"{row.devices:,}", f"{row.nodes:,}", *cells)
    console.print(table)
    notes = ["* the fastest for one bucket"]
    if timed:
        used = dict.fromkeys(row.algorithm for row in rows)
        of = "which gloo uses" if plan.config.hardware.device is Device.cpu else "the fastest"
        notes.append(f"the update is reckoned by {', then '.join(used)}, {of}")
    notes += [
        f"every device keeps {counted(plan.arithmetic.accum, 'micro-batch')} of {plan.arithmetic.per_device} an update"
    ]
    for where, path in (("inside a node", shape.inside), ("out of a node", shape.between)):
        notes.append(f"{where}: {path.rate * 8 / 1e6:,.4g} Mbit/s and {path.alpha * 1e3:.3g} ms a message")
    for note in [*notes, "switches carry all nodes at full rate; no device is slower than another"]:
        console.print(note, markup=False, highlight=False)
