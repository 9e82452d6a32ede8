"""The same jobs several times: what a sweep over `repeat` says about seconds, as mean and spread over its rounds.

A machine that other work disturbs disturbs one round more than another; ratios are therefore taken within a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.counts import counted
from runner.summary import WIDEST, Summary

REFERENCE = "sync=accumulate"  # what the other policies are measured by

Jobs = Sequence[tuple[tuple[str, ...], Summary]]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of job. `seconds` of a micro-batch by round; `ratios` to the same job under the reference policy, by round."""

    name: str
    seconds: dict[str, float]
    ratios: dict[str, float]
    batches: int  # timed in a round, for each process
    collectives: int | None
    bytes: int | None


def rows_of(jobs: Jobs) -> list[Row]:
    """The kinds of jobs, each with its rounds; nothing where nothing was repeated."""
    shared = set.intersection(*(set(overrides) for overrides, _ in jobs)) if jobs else set()
    kinds: dict[tuple[str, ...], dict[str, Summary]] = {}
    for overrides, summary in jobs:
        rest = tuple(o for o in overrides if not o.startswith("repeat=") and o not in shared)
        number = next((o for o in overrides if o.startswith("repeat=")), "")
        kinds.setdefault(rest, {})[number] = summary
    if max((len(rounds) for rounds in kinds.values()), default=0) < 2:
        return []
    seconds = {kind: {n: s.seconds[0] for n, s in rounds.items() if s.seconds} for kind, rounds in kinds.items()}
    return [
        Row(
            name=" ".join(kind),
            seconds=seconds[kind],
            ratios=dict(_ratios(seconds[kind], seconds.get(_reference(kind), {}))),
            batches=min(s.batches for s in rounds.values()),
            collectives=max((s.collectives for s in rounds.values() if s.collectives is not None), default=None),
            bytes=max((s.bytes for s in rounds.values() if s.bytes is not None), default=None),
        )
        for kind, rounds in kinds.items()
    ]


def show_rounds(jobs: Jobs, console: Console) -> None:
    """The table of a sweep that repeats its jobs."""
    rows = rows_of(jobs)
    if not rows:
        return
    rounds = max(len(r.seconds) for r in rows)
    batches = min(r.batches for r in rows)
    title = f"Seconds per batch: mean and spread over {rounds} rounds of {counted(batches, 'batch')} for each process"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    compared = any(r.ratios for r in rows)
    for name in ("job", "s/batch", *(["of accumulate"] if compared else []), "collectives", "bytes"):
        table.add_column(name, justify="left" if name == "job" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row.name),
            _text(row.seconds.values()),
            *([_text(row.ratios.values(), 2)] if compared else []),
            "-" if row.collectives is None else str(row.collectives),
            "-" if row.bytes is None else f"{row.bytes:,}",
        )
    Console(file=console.file, width=WIDEST).print(table, soft_wrap=True)  # as the sweep's own table


def _reference(kind: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(REFERENCE if o.startswith("sync=") else o for o in kind)


def _ratios(mine: dict[str, float], theirs: dict[str, float]) -> Iterator[tuple[str, float]]:
    for number, value in mine.items():
        if theirs.get(number):
            yield number, value / theirs[number]


def _text(values: Iterable[float], digits: int = 4) -> str:
    found = list(values)
    if not found:
        return "-"
    return f"{mean(found):.{digits}f} +- {stdev(found) if len(found) > 1 else 0.0:.{digits}f}"
