"""What trackers cost: to start and end, for each row, and for the training that they watch.

    python benchmarks/trackers.py [--rows 2000] [--updates 150] [--rounds 3]

The first table is of the parent process alone: seconds to load and start a tracker, to finish it, and microseconds for
a micro-batch's row, beside the line of JSON that is written in any case. Each tracker is measured in a process of its own.
The second is of training: seconds of an update, as its row tells, with and without the tracker; rounds are interleaved.
Trackers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRACKERS = ("wandb", "tensorboard", "mlflow")


def measure_rows(name: str, rows: int) -> dict[str, float]:
    """Wall seconds of one tracker's life in this process."""
    from runner import rundir
    from runner.compose.app import compose_one
    from runner.compose.arguments import parse
    from runner.records import Appender, BatchRow, read
    from runner.tracker.feed import open_tracker
    from runner.tracker.point import point_of

    plan = compose_one(parse([f"tracker={name}", "hardware=2cpu"]))
    with tempfile.TemporaryDirectory() as place:
        folder = rundir.create(Path(place, "run"), plan, "", "")
        written = [BatchRow(1 + i // 2, i % 2, i % 2, 1, 1.0 / (i + 1), 32.0, 0.01, i % 2 == 1) for i in range(rows)]
        file, start = Appender(folder.batches), time.perf_counter()
        for row in written:
            file.append([row])
        plain = time.perf_counter() - start
        start, cpu = time.perf_counter(), time.process_time()
        tracker = open_tracker(plan, folder)
        opened, opened_cpu = time.perf_counter() - start, time.process_time() - cpu
        points = [point_of("batch", row, 2) for row in read(folder.batches)]
        tracker.plan(plan)
        start = time.perf_counter()
        tracker.log(points)
        logged = time.perf_counter() - start
        start = time.perf_counter()
        tracker.close("finished")
        closed = time.perf_counter() - start
    return {"start": opened, "cpu": opened_cpu, "row": logged / rows * 1e6, "end": closed, "plain": plain / rows * 1e6}


def measure_training(name: str, updates: int) -> list[float]:
    """Seconds of each update of a real run, the first ones left out."""
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable, "-m", "runner", f"tracker={name}", "hardware=2cpu", f"budget.updates={updates}",
            f"hydra.run.dir={place}/run",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        lines = Path(place, "run", "updates.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines[updates // 5 :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one tracker, in this process
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_rows(options.one, options.rows)))
        return
    present = [name for name in TRACKERS if importlib.util.find_spec(name)]
    print(f"{'tracker':12} {'start s':>8} {'CPU s':>8} {'us/row':>8} {'end s':>8} {'JSON us/row':>12}")
    for name in present:
        argv = [sys.executable, __file__, "--one", name, "--rows", str(options.rows)]
        answer = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        m = json.loads(answer.splitlines()[-1])
        print(f"{name:12} {m['start']:8.2f} {m['cpu']:8.2f} {m['row']:8.0f} {m['end']:8.2f} {m['plain']:12.0f}")
    seconds: dict[str, list[float]] = {name: [] for name in ("local", *present)}
    for _ in range(options.rounds):
        for name, found in seconds.items():
            found.append(statistics.median(measure_training(name, options.updates)))
    print(f"\n{'tracker':12} {'ms/update':>10}  (median of each round's median; all rounds)")
    for name, found in seconds.items():
        told = " ".join(f"{s * 1e3:.2f}" for s in found)
        print(f"{name:12} {statistics.median(found) * 1e3:10.2f}  ({told})")


if __name__ == "__main__":
    main()
