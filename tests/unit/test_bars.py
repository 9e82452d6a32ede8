"""The report's bars: a measure over a setting that is a number, one colour for each combination of the others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner import rundir
from runner.compare.bars import bars
from runner.compare.read import Run, read_run
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.plan import Sizes


def run(folder: Path, memory: int, seconds: float, *overrides: str) -> Run:
    line = ["batch=per_device", "batch.size=2", "budget.updates=2", *overrides]
    plan = compose_one(parse(line)).with_sizes(Sizes(items=500, parameters=100), "d")
    made = rundir.create(folder, plan, "", "")
    update = {
        "epoch": 1, "loss": 1.0, "weight": 2.0, "lr": 1e-3, "grad_norm": 1.0, "seconds": 0.01, "items": 2, "digest": "d",
        "collectives": 1, "bytes": 4096, "skipped": False, "scale": None, "peak_memory": memory,
    }  # fmt: skip
    batch = {"micro": 0, "rank": 0, "epoch": 1, "loss": 1.0, "weight": 2.0, "synced": True}
    made.updates.write_text("".join(json.dumps({"update": n, **update}) + "\n" for n in (1, 2)))
    made.batches.write_text("".join(json.dumps({"update": n, "seconds": seconds, **batch}) + "\n" for n in (1, 2)))
    made.write_status("finished")
    return read_run(folder)


@pytest.fixture
def swept(tmp_path: Path) -> list[Run]:
    jobs = [(a, p) for a in (1, 2, 16) for p in ("accumulate", "every_batch")]
    return [
        run(tmp_path / f"{a}-{p}", (10 + a if p == "accumulate" else 10) * 2**20, 0.1, f"accum={a}", f"sync={p}")
        for a, p in jobs
    ]


def test_a_bar_for_each_run(swept: list[Run]) -> None:
    html = bars(swept)
    memory = html.split("Peak memory in MiB</text>")[1]
    found = re.findall(r'height="([\d.]+)" fill="(#\w+)"><title>([^<]*)</title>', memory)
    heights = {text: float(height) for height, _, text in found}
    assert heights["accumulate, accum 16: 26"] == max(heights.values())
    assert heights["every_batch, accum 16: 10"] == heights["every_batch, accum 1: 10"]
    assert heights["accumulate, accum 16: 26"] / heights["every_batch, accum 1: 10"] == pytest.approx(2.6, rel=0.01)
    assert len(found) == 6
    assert len({color for _, color, _ in found}) == 2
    assert html.count("<svg") == 2


def test_where_there_is_nothing_to_draw(swept: list[Run], tmp_path: Path) -> None:
    assert bars(swept[:1]) == ""
    assert bars(swept[:2]) == "", "they differ in no number"
    assert bars([*swept, swept[0]]) == "", "two at one place"
