"""How long `compare` takes over many runs and over long ones.

    python benchmarks/compare_speed.py

Makes run folders with rows as runs write them, and times the command: wall seconds, CPU seconds, the peak of its memory, and
the size of its report.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner import records, rundir
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.plan import Sizes
from runner.records import BatchRow, UpdateRow

CASES = {"100 runs of 10,000 updates": (100, 10_000), "a run of 1,000,000 updates": (1, 1_000_000)}


def make_run(folder: Path, updates: int, seed: int) -> None:
    """A finished run of so many updates, each of one micro-batch, with losses that differ by rounding."""
    plan = compose_one(parse([f"budget.updates={updates}"])).with_sizes(Sizes(items=1437, parameters=51946))
    run = rundir.create(folder, plan, "", "")
    same, own = random.Random(0), random.Random(seed)
    for start in range(1, updates + 1, 10_000):
        batches, rows = [], []
        for update in range(start, min(start + 10_000, updates + 1)):
            loss = (2.3 / update + same.random() / 10) * (1 + own.uniform(-1e-7, 1e-7))
            batches.append(BatchRow(update, 0, 0, 1 + update // 23, loss, 64.0, 0.005, False))
            rows.append(
                UpdateRow(
                    update,
                    1 + update // 23,
                    loss,
                    64.0,
                    2e-3,
                    loss,
                    0.006,
                    64,
                    "05127dbb05127dbb",
                    0,
                    0,
                    False,
                    None,
                    50_000_000,
                )
            )
        records.append(run.batches, batches)
        records.append(run.updates, rows)
    run.write_status("finished")


def main() -> None:
    for name, (runs, updates) in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for number in range(runs):
                make_run(folder / f"run-{number:03}", updates, number)
            report = folder / "report.html"
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            command = [sys.executable, "-m", "runner", "compare", str(folder), "--report", str(report)]
            code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
            wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            size = report.stat().st_size / 1e6 if report.exists() else 0.0
            print(
                f"{name}: {wall:.1f} s, {cpu:.1f} CPU s, peak {after.ru_maxrss / 1e3:.0f} MB, report {size:.1f} MB, exit code {code}"
            )


if __name__ == "__main__":
    main()
