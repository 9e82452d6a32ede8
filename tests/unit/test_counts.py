"""Counts with their nouns, and that none is written another way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.counts import counted

RUNNER = Path(__file__).resolve().parents[2] / "runner"
NOUNS = "process|node|seed|update|job|item|run|epoch|batch|micro-batch|round|task|pair|CPU core|core|GPU|solution|size|window|row"
# a count that is followed by its noun as it is for several
PLURAL = re.compile(rf"\{{([^{{}}]*)\}} ({NOUNS})(e?s)\b")
NEVER_ONE = {  # counts that cannot be one where they are printed
    "LOCAL", "SEEDS", "asked.nodes", "hardware.nodes", "nodes", "plan.config.hardware.nodes", "2 * down", "rounds",
    "config.schedule.warmup", "updates", "run.count", "len(sweep.jobs)", "len(off)", "size", "tasks", "self.seeds[1]", "len(measured.points)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("n", "noun", "text"),
    [
        (0, "seed", "0 seeds"), (1, "process", "1 process"), (2, "process", "2 processes"), (3, "batch", "3 batches"),
        (1, "CPU core", "1 CPU core"), (2, "CPU core", "2 CPU cores"),
    ],
)  # fmt: skip
def test_a_count_and_its_noun(n: int, noun: str, text: str) -> None:
    assert counted(n, noun) == text


def plurals(text: str) -> list[str]:
    return [found[0] for found in PLURAL.finditer(text) if found[1].partition(":")[0].strip() not in NEVER_ONE]


def test_no_count_is_written_with_a_noun_that_is_always_plural() -> None:
    found = {f.name: plurals(f.read_text()) for f in RUNNER.rglob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert plurals('f"ran on {n} nodes"') == ["{n} nodes"], "the control"
