"""A comparison on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.compare.cause import experiment_differences
from runner.compare.facts import facts, group_pairs, setting, settings
from runner.compare.pairs import Verdict
from runner.compare.read import Run, shown
from runner.compare.session import Comparison, Family, twin_text
from runner.compare.verdict import Kind
from runner.counts import counted

STYLES = {
    Kind.identical: "bold green", Kind.equal: "green", Kind.close: "cyan", Kind.different: "bold red", Kind.incomparable: "yellow",
}  # fmt: skip
TOLD = 20  # reasons that are written out


def show(comparison: Comparison, console: Console) -> None:
    """Everything, in the order in which one asks: the runs, the verdicts and their reasons, what was left out."""
    for group in comparison.groups:
        _show_group(group, comparison, console)
    for a, b in group_pairs(comparison):
        differences = "; ".join(experiment_differences(a[0], b[0]))
        _line(
            console, "not comparable", f"{a[0].name} and {b[0].name}{_others(a, b)}: {differences}", Kind.incomparable
        )
    for family in comparison.families:
        _show_family(family, console)
    for twin in comparison.twins:
        of = next((r for r in comparison.runs if (r.experiment, r.setup) == (twin.experiment, twin.setup)), None)
        text = f": {twin_text(of, twin)}" if of else ""
        _line(console, "twin", f"{twin.name} is the yardstick for rounding{text}")
    for left in comparison.left_out:
        _line(console, "left out", f"{shown(left.path)}: {left.reason}", Kind.incomparable)
    if len(comparison.runs) < 2:
        _line(
            console,
            "nothing to compare",
            "(it takes two runs; found " + (f"{len(comparison.runs)})" if comparison.runs else "none)"),
        )


def show_verdicts(comparison: Comparison, console: Console) -> None:
    """The verdicts alone, as they stand under a sweep's own table."""
    groups = [g for g in comparison.groups if len(g) > 1]
    for group in groups:
        own = [v for v in comparison.verdicts if v.a is group[0]]
        for verdict in own[:TOLD]:
            _reason(verdict, console)
        others = Counter(v.kind.value for v in comparison.verdicts if v.a in group and v.a is not group[0])
        if others:
            _line(console, "other pairs", ", ".join(f"{n} {kind}" for kind, n in others.items()))
    if len(comparison.groups) > 1:
        alone = len(comparison.groups) - len(groups)
        text = f"{len(comparison.groups)} experiments, which differ in what is trained"
        _line(console, "not comparable", text + (f"; {alone} of them ran once" if alone else ""), Kind.incomparable)
    for family in comparison.families:
        _show_family(family, console)
    for left in comparison.left_out:
        _line(console, "left out", f"{shown(left.path.name)}: {left.reason}", Kind.incomparable)


def _show_group(group: list[Run], comparison: Comparison, console: Console) -> None:
    """Runs of one experiment: their table against the first, and why."""
    first = group[0]
    verdicts = {v.b.name: v for v in comparison.verdicts if v.a is first}
    table = Table(box=None, pad_edge=False)
    keys = settings(group)
    names = ["run", *keys, "verdict", "from update", "loss", "s/batch", "collectives", "bytes", "peak memory"]
    for name in names:
        table.add_column(
            escape(name), overflow="fold", justify="left" if name in ("run", "verdict", *keys) else "right"
        )
    for run in group:
        verdict = verdicts.get(run.name)
        table.add_row(escape(run.name), *(escape(setting(run, k)) for k in keys), *_cells(verdict, run))
    wide = console.options.update(max_width=10_000)  # a file takes long lines, a terminal wraps them
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    own = [v for v in comparison.verdicts if v.a is first]
    others = [v for v in comparison.verdicts if v.a in group and v.a is not first]
    counts = Counter(v.kind.value for v in others)
    shown = [v for v in own if v.kind is not Kind.identical] + [v for v in others if not v.kind.same]
    for verdict in shown[:TOLD]:
        _reason(verdict, console)
    if len(shown) > TOLD:
        _line(console, "more", f"{counted(len(shown) - TOLD, 'further pair')}: see --json or --report")
    if counts:
        told = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        _line(console, "other pairs", told)
    for run in group:
        for note in run.notes:
            _line(console, "note", f"{run.name}: {note}")


def _cells(verdict: Verdict | None, run: Run) -> list[str]:
    known = facts(run)
    kind = f"[{STYLES[verdict.kind]}]{verdict.kind.value}[/]" if verdict else "(reference)"
    first = str(verdict.first) if verdict and verdict.first else "-"
    mean, spread = known["seconds_mean"], known["seconds_spread"]
    time = "-" if mean is None else f"{mean:.4f} +- {spread or 0:.4f}"
    loss = "-" if known["loss"] is None else f"{known['loss']:.5g}"
    return [
        kind,
        first,
        loss,
        time,
        str(known["collectives"]),
        f"{known['bytes']:,}",
        "-" if known["peak_memory"] is None else f"{known['peak_memory'] / 2**20:,.1f} MiB",
    ]


def _reason(v: Verdict, console: Console) -> None:
    _line(console, v.kind.value, f"{v.a.name} and {v.b.name}: {v.reason}", v.kind)
    for note in v.notes:
        _line(console, "  note", note)


def _show_family(family: Family, console: Console) -> None:
    names = f"{family.left[0].name} ({counted(len(family.left), 'seed')}) and {family.right[0].name} ({counted(len(family.right), 'seed')})"
    if min(len(family.left), len(family.right)) > 1:
        _line(console, "seeds", f"{names}: {family.verdict}")
        for test in family.tests:
            _line(console, "  outcome", str(test))


def _others(a: list[Run], b: list[Run]) -> str:
    more = len(a) + len(b) - 2
    return f" (and {more} more in their groups)" if more else ""


def _line(console: Console, head: str, text: str, kind: Kind | None = None) -> None:
    style = STYLES[kind] if kind else "dim"
    console.print(f"[{style}]{escape(head)}[/] {escape(text)}", highlight=False, soft_wrap=True)
