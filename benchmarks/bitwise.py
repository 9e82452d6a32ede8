"""What equality to the last bit costs: `seeding=bitwise` beside `exact`, seconds per micro-batch.

    python benchmarks/bitwise.py [--processes 1 2 4] [--rounds 15]

Both train the same byte-level transformer in the same processes and one process group, and take turns, round after
round: whatever else the machine does meets both. `exact` runs twice: the second one shows what a difference of
nothing looks like. Every process has one thread. After every round the weights of `bitwise` are held against those of a
single process: the bits that are paid for.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runner import backend, rundir, validation
from runner.loop import Training, update
from runner.plan import make_plan
from runner.precision import Precision
from runner.seeding import use_deterministic_kernels
from runner.task import Task
from runner.worker import complete, make_experiment, prepare
from runner.world import World

MICRO_BATCHES, PER_DEVICE, LENGTH, ITEMS = 8, 8, 64, 4096
WIDTHS = {"0.4M": (96, 3), "5M": (256, 6)}  # width and blocks
WINDOWS = {"0.4M": 3, "5M": 1}  # in one turn


class Bytes(Task):
    """Predict the next of random bytes with a transformer with dropout."""

    def __init__(self, width: int, blocks: int):
        self.width, self.blocks = width, blocks
        self.items = torch.randint(256, (ITEMS, LENGTH + 1), generator=torch.Generator().manual_seed(0))

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(self.width, 4, 4 * self.width, 0.1, batch_first=True)
        blocks = nn.TransformerEncoder(layer, self.blocks, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(256, self.width), blocks, nn.Linear(self.width, 256))

    def train_data(self) -> torch.Tensor:
        return self.items

    def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
        logits = model(batch[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="sum"), batch[:, 1:].numel()


def configuration(size: str, processes: int, seeding: str) -> dict[str, Any]:
    width, blocks = WIDTHS[size]
    return {
        "task": {"_target_": "bitwise.Bytes", "width": width, "blocks": blocks},
        "optim": {
            "name": "adamw",
            "lr": 1e-3,
            "clip": 1.0,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.01,
        },
        "schedule": {"name": "constant", "warmup": 0},
        "batch": {"mode": "observed", "size": MICRO_BATCHES * PER_DEVICE, "remainder": "drop"},
        "hardware": {"device": "cpu", "processes": processes, "threads": 1},
        "sync": {"policy": "accumulate"},
        "precision": {"name": "fp32"},
        "seeding": {"mode": seeding},
        "lr_scaling": {"rule": "none", "reference": None},
        "link": {"name": "none"},
        "tracker": {"name": "local"},
        "accum": MICRO_BATCHES // processes,
        "seed": 0,
        "budget": {"epochs": None, "updates": 1_000_000},
        "data": {"shuffle": True, "workers": 0},
        "eval": {"every": None},
        "early_stop": {"metric": None, "mode": "min", "patience": 0, "min_delta": 0.0},
        "log": {"every": 1},
        "nonfinite": "stop",
    }


def make(size: str, world: World, seeding: str, folder: Path) -> tuple[Training, Callable[[], None]]:
    """A run that is ready to go, and what does its next window."""
    config = validation.read(configuration(size, world.size, seeding))
    device, precision = (
        backend.open_backend(config.hardware.device, world.rank),
        Precision(config.precision.name, "cpu"),
    )
    plan = make_plan(config)
    experiment = make_experiment(plan, precision, device)
    run = rundir.RunFolder(folder)
    run.path.mkdir(exist_ok=True)
    training = prepare(complete(plan, world, experiment), run, world, device, precision, experiment)
    windows = iter(training.windows)
    return training, lambda: update(training, next(windows))


def digest(training: Training) -> str:
    found = blake2b(digest_size=8)
    for p in training.parameters:
        found.update(p.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def compete(size: str, rounds: int, folder: Path) -> None:
    """One process of the competition; rank 0 writes every round's seconds of a micro-batch, and the weights' digests."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    world = World(0, 1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        world = World(dist.get_rank(), dist.get_world_size())
    contenders = {"exact": "exact", "exact again": "exact", "bitwise": "bitwise"}
    made = {name: make(size, world, seeding, folder / name) for name, seeding in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    digests, order = [], list(made)
    gc.collect()
    gc.disable()
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(order)  # the same order on every process
        for name in order:
            torch.use_deterministic_algorithms(False)
            if contenders[name] == "bitwise":
                use_deterministic_kernels()
            world.barrier()
            start = time.perf_counter()
            for _ in range(WINDOWS[size]):
                made[name][1]()
            if turn:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / WINDOWS[size] / (MICRO_BATCHES // world.size))
        digests.append(digest(made["bitwise"][0]))
    if world.rank == 0:
        (folder / "results.json").write_text(json.dumps({"seconds": seconds, "digests": digests}))
    world.barrier()
    os._exit(0)  # what holds the group would have to go first


def measure(size: str, processes: int, rounds: int) -> dict[str, Any]:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, __file__, "--compete", folder, "--sizes", size, "--rounds", str(rounds)]
        subprocess.run(command, check=True, timeout=1800)
        results: dict[str, Any] = json.loads(Path(folder, "results.json").read_text())
    return results


def show(size: str, processes: int, results: dict[str, Any], alone: list[str] | None) -> None:
    seconds = results["seconds"]
    base = statistics.median(seconds["exact"])
    bits = "" if alone is None else f"; bits of one process: {'equal' if results['digests'] == alone else 'DIFFERENT'}"
    print(f"\n{size} parameters, {processes} process(es): exact {base * 1e3:.1f} ms a micro-batch{bits}")
    for name in ("exact again", "bitwise"):
        low, middle, high = statistics.quantiles(
            (s / b for s, b in zip(seconds[name], seconds["exact"], strict=True)), n=4
        )
        fastest = min(seconds[name]) / min(seconds["exact"])
        print(f"  {name:12} x{middle:.3f} ({low:.3f}..{high:.3f}), the fastest rounds x{fastest:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sizes", nargs="+", default=list(WIDTHS), choices=list(WIDTHS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write every round's seconds there")
    parser.add_argument("--compete", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compete:
        compete(options.sizes[0], options.rounds, options.compete)
    everything = {}
    for size in options.sizes:
        alone = None
        for processes in options.processes:
            results = everything[f"{size}-{processes}"] = measure(size, processes, options.rounds)
            show(size, processes, results, alone)
            alone = results["digests"] if processes == 1 else alone
    if options.json:
        options.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
