"""A run in a few numbers, read from its folder; the tables at the end of a run and of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner import records
from runner.choices import CompressName, SyncPolicy
from runner.errors import RunnerError
from runner.plan import Plan
from runner.rundir import RunFolder

WIDEST = 1000  # characters of a table's row


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run's rows come to. Numbers are None where there are no rows for them."""

    folder: RunFolder
    plan: Plan
    state: str
    reason: str | None
    updates: int
    loss: float | None
    evaluation: dict[str, Any] | None
    seconds: tuple[float, float] | None  # of a micro-batch: mean and standard deviation, the first windows left out
    batches: int  # that `seconds` are of, for each process
    rate: float | None  # weight (items or tokens) in a second
    collectives: int | None
    bytes: int | None
    memory: int | None  # peak, in bytes, on rank 0

    @classmethod
    def of(cls, folder: RunFolder) -> Summary:
        rows = _rows(folder.updates)
        first = _unsteady(rows)
        batches = [r["seconds"] for r in _rows(folder.batches) if r["update"] > first]
        evals = _rows(folder.evals)
        status, plan = folder.read_status(), folder.read_plan()
        last = rows[-1] if rows else {}
        steady = rows[first:] or rows
        time = sum(r["seconds"] for r in steady)
        return cls(
            folder=folder,
            plan=plan,
            state=status["state"],
            reason=status.get("reason"),
            updates=len(rows),
            loss=last.get("loss"),
            evaluation=evals[-1] if evals else None,
            seconds=(mean(batches), stdev(batches) if len(batches) > 1 else 0.0) if batches else None,
            batches=len(batches) // folder.read_plan().arithmetic.processes,
            rate=sum(r["weight"] for r in steady) / time if time else None,
            collectives=_sent(plan, rows, first, "collectives"),
            bytes=_sent(plan, rows, first, "bytes"),
            memory=max((r["peak_memory"] for r in rows if r["peak_memory"] is not None), default=None),
        )

    @property
    def objective(self) -> float | None:
        """What a sweeper minimizes: the loss of the last evaluation, or of the last update."""
        value = self.evaluation["loss"] if self.evaluation else self.loss
        return float(value) if value is not None else None

    @property
    def metrics(self) -> dict[str, float | None]:
        known = ("update", "epoch", "loss", "weight")
        return {k: v for k, v in (self.evaluation or {}).items() if k not in known}


def show_run(s: Summary, console: Console) -> None:
    """The short table of one run, and where its folder is."""
    table = Table(show_header=False, box=None, pad_edge=False)
    a = s.plan.arithmetic
    table.add_row("updates", f"{s.updates}")
    table.add_row("observed batch", f"{a.observed} = {a.per_device} per device x {a.processes} x accum {a.accum}")
    table.add_row("final loss", _number(s.loss))
    if s.evaluation:
        table.add_row("evaluation loss", _number(s.evaluation["loss"]))
    for name, value in s.metrics.items():
        table.add_row(escape(name), _number(value))
    table.add_row("seconds per batch", _seconds(s))
    table.add_row("weight per second", f"{s.rate:,.0f}" if s.rate else "-")
    table.add_row("collectives per update", f"{s.collectives if s.collectives is not None else '-'}")
    table.add_row("bytes per update", f"{s.bytes:,}" if s.bytes is not None else "-")
    table.add_row("peak memory", f"{s.memory / 2**20:,.1f} MiB" if s.memory is not None else "-")
    console.print(table)
    for note in s.plan.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(f"run folder: {s.folder.path}", markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Row:
    """A job in the table of its sweep. `summary` is None where there is no folder to read."""

    overrides: tuple[str, ...]
    state: str
    reason: str | None
    summary: Summary | None = None

    @classmethod
    def of(cls, overrides: tuple[str, ...], folder: RunFolder) -> Row:
        """The row of a job that has a folder, of which parts may be missing."""
        status: dict[str, Any] = {}
        try:
            status = folder.read_status()
            summary = Summary.of(folder)
        except (OSError, ValueError, KeyError, RunnerError) as error:
            return cls(
                overrides, status.get("state", "failed"), status.get("reason") or f"its folder cannot be read: {error}"
            )
        return cls(overrides, summary.state, summary.reason, summary)


def show_sweep(rows: list[Row], sweep: Path, console: Console) -> None:
    """One row for each job of a sweep, named by what differs between them."""
    shared = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    names = [" ".join(o for o in row.overrides if o not in shared) for row in rows]
    metrics = list(dict.fromkeys(name for row in rows if row.summary for name in row.summary.metrics))
    table = Table(box=None, pad_edge=False)
    for name in (
        "job",
        "status",
        "updates",
        "observed",
        "loss",
        "eval loss",
        *metrics,
        "s/batch",
        "collectives",
        "bytes",
        "peak MiB",
    ):
        table.add_column(escape(name), justify="left" if name in ("job", "status") else "right", no_wrap=True)
    for name, row in zip(names, rows, strict=True):
        if (s := row.summary) is None:
            table.add_row(escape(name), row.state, *["-"] * (len(table.columns) - 2))
            continue
        table.add_row(
            escape(name),
            s.state,
            str(s.updates),
            str(s.plan.arithmetic.observed),
            _number(s.loss),
            _number(s.evaluation["loss"] if s.evaluation else None),
            *(_number(s.metrics.get(m)) for m in metrics),
            _seconds(s),
            "-" if s.collectives is None else str(s.collectives),
            "-" if s.bytes is None else f"{s.bytes:,}",
            "-" if s.memory is None else f"{s.memory / 2**20:.1f}",
        )
    Console(file=console.file, width=WIDEST).print(table, soft_wrap=True)  # a narrow terminal wraps, nothing is cut
    for name, row in zip(names, rows, strict=True):
        if row.reason:
            console.print(f"{name}: {row.state}: {row.reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"sweep folder: {sweep}", markup=False, highlight=False, soft_wrap=True)


def _unsteady(rows: list[dict[str, Any]]) -> int:
    """How many windows at the start are not to be timed: the first, and those in which memory was measured if it was not
    measured in all."""
    measured = sum(r["peak_memory"] is not None for r in rows)
    return max(1, measured) if measured < len(rows) else 1


def _sent(plan: Plan, rows: list[dict[str, Any]], first: int, column: str) -> int | None:
    """Of an update with a full window; on average where updates differ by design. The first windows apart where they do."""
    local, narrow = plan.config.sync.policy is SyncPolicy.local_sgd, plan.config.compress.name is not CompressName.none
    values = [r[column] for r in (rows[first:] if local or narrow else rows) or rows]
    return (round(mean(values)) if local else max(values)) if values else None


def _rows(path: Any) -> list[dict[str, Any]]:
    return list(records.read(path)) if path.exists() else []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _seconds(s: Summary) -> str:
    if s.seconds is None:
        return "-"
    return f"{s.seconds[0]:.4f} +- {s.seconds[1]:.4f}"
