"""Predicted against measured seconds per batch, over links and policies: `python -m benchmarks.link_prediction`.

Two processes without a link, whose unsynchronized micro-batches give the pace of computing, run before and after every
policy on every link, on two nodes made of this machine: a cell is held against the mean of the two paces around it, because
other work on the machine comes and goes. A cell's error is the median over the rounds of measured / predicted - 1. Prints the
worst cell in the end. About three minutes a round on two quiet cores; needs network namespaces (docs/link.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from runner import records
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.plan_view import sizes_of
from runner.predict.link import predict
from runner.predict.pace import Pace, pace_of
from runner.rundir import RunFolder

TASK = [
    "task=reviews", "task.vocabulary=8192", "schedule=constant", "batch=per_device", "batch.size=16", "accum=4",
    "optim.lr=1e-4", "log.memory=false",
]  # fmt: skip
LINKS = ("350mbit", "1gbit")
POLICIES = ("every_batch", "no_sync", "accumulate")
UNSTEADY = 2  # updates at the start: memory is taken, DDP makes its buckets anew
LIMIT = 0.15


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--updates", type=int, default=6)
    asked.add_argument("--links", default=",".join(LINKS))
    arguments = asked.parse_args()
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            base = Path(folder) / str(number)
            before = _pace(base / "pace", arguments.updates)
            for link in arguments.links.split(","):
                for policy in POLICIES:
                    setup = ["hardware=2node", f"link={link}", f"sync={policy}"]
                    run = _run(base / f"{link}-{policy}", arguments.updates, *setup)
                    after = _pace(base / f"{link}-{policy}-pace", arguments.updates)
                    between = replace(before, micro=(before.micro + after.micro) / 2)
                    errors[link, policy].append((_measured(run), _predicted(setup, between)))
                    print(
                        f"round {number + 1} {link} {policy}: paces {before.micro:.4f}, {after.micro:.4f}", flush=True
                    )
                    before = after
    return _table(errors)


def _run(folder: Path, updates: int, *setup: str) -> Path:
    command = [sys.executable, "-m", "runner", *TASK, *setup, f"budget.updates={updates}", f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return folder


def _pace(folder: Path, updates: int) -> Pace:
    return pace_of(_run(folder, updates, "hardware=2cpu", "sync=accumulate"))


def _measured(run: Path) -> float:
    """Seconds per batch: the median window's mean."""
    windows: dict[int, list[float]] = defaultdict(list)
    for row in records.read(RunFolder(run).batches):
        if row["update"] > UNSTEADY:
            windows[row["update"]].append(row["seconds"])
    return median(mean(seconds) for seconds in windows.values())


def _predicted(setup: list[str], pace: Pace) -> float:
    plan = compose_one(parse([*TASK, *setup]))
    sizes = sizes_of(plan.config.task, load=False)
    assert sizes is not None
    seconds = predict(plan.with_sizes(sizes), sizes, pace)
    assert seconds is not None and seconds.batch is not None
    return seconds.batch


def _table(errors: dict[tuple[str, str], list[tuple[float, float]]]) -> int:
    worst = (0.0, "")
    print(f"{'link':10}{'policy':16}{'measured':>10}{'predicted':>11}{'error':>9}   of the rounds")
    for (link, policy), rounds in errors.items():
        each = [measured / predicted - 1 for measured, predicted in rounds]
        middle = median(each)
        measured, predicted = median(m for m, _ in rounds), median(p for _, p in rounds)
        shown = " ".join(f"{e:+.1%}" for e in each)
        print(f"{link:10}{policy:16}{measured:10.4f}{predicted:11.4f}{middle:+9.1%}   {shown}")
        worst = max(worst, (abs(middle), f"{link} {policy}"))
    print(f"worst {worst[0]:.1%}, {worst[1]} (wanted: within {LIMIT:.0%})")
    return 0 if worst[0] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
