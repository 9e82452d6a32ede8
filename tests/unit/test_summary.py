"""The tables at the end of a run and of a sweep show what was typed, brackets and all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.rounds import show_rounds
from runner.rundir import RunFolder
from runner.summary import Row, Summary, show_run, show_sweep


@pytest.fixture
def summary() -> Summary:
    return Summary(
        folder=RunFolder(Path("outputs/[day]/run")), plan=compose_one(parse([])), state="failed", reason="no [thing]", updates=1,
        loss=1.0, evaluation={"update": 1, "epoch": 1, "loss": 1.0, "weight": 1.0, "top[k]": 0.5}, seconds=(0.1, 0.0), batches=1,
        rate=1.0, collectives=0, bytes=0, memory=None,
    )  # fmt: skip


def test_what_was_typed_is_no_markup(summary: Summary) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    typed = [(f"task.names=[{name}]", f"repeat={n}") for name in ("a,b", "/c") for n in (1, 2)]
    show_sweep([Row(overrides, "failed", "no [thing]", summary) for overrides in typed], Path("outputs/[day]"), console)
    show_rounds([(overrides, summary) for overrides in typed], console)
    show_run(summary, console)
    text = out.getvalue()
    for shown in ("task.names=[a,b]", "task.names=[/c]"):
        assert text.count(shown) == 2 + 2 + 1, "in both tables, and with the reason"
    assert text.count("top[k]") == 2 and "outputs/[day]/run" in text and "no [thing]" in text
