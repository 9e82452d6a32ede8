"""What the loop costs: Samestep beside a hand-written PyTorch loop, Accelerate and Lightning Fabric.

    python benchmarks/loop_overhead.py [--processes 1 2] [--rounds 15]

All contenders live in the same processes and in one process group, and take turns, round after round, in an
order that changes: whatever else the machine does meets all of them. Each does the same work: the same model, items,
optimizer, accumulation over 4 micro-batches, clipping to the window's global norm, and a record of every
micro-batch's loss in a file, written once per window. Reported are the ratios to the hand-written loop, and the
microseconds more per micro-batch, as medians over rounds with the quartiles. The hand-written loop runs twice: the second one
shows what a difference of nothing looks like.
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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from runner import backend, rundir, validation
from runner.choices import PrecisionName
from runner.loop import update
from runner.plan import make_plan
from runner.precision import Precision
from runner.task import Task
from runner.worker import complete, make_experiment, prepare
from runner.world import World

ACCUM, PER_DEVICE, ITEMS, CLIP = 4, 16, 4096, 1.0
SIZES = {"tiny": (32, 1), "20ms": (704, 3)}  # width and hidden layers
WINDOWS = {"tiny": 100, "20ms": 3}  # in one turn


class Vectors(Task):
    """Classify random vectors with a multi-layer perceptron."""

    def __init__(self, width: int, layers: int):
        self.width, self.layers = width, layers
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(ITEMS, width, generator=generator)
        self.labels = torch.randint(10, (ITEMS,), generator=generator)

    def model(self) -> nn.Module:
        hidden = [m for _ in range(self.layers) for m in (nn.Linear(self.width, self.width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(self.width, 10))

    def train_data(self) -> Vectors:
        return self

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
        inputs, labels = batch
        if self.layers > 1:  # enough arithmetic for 20 ms, with few parameters to send
            inputs = inputs.repeat(16, 1)
            labels = labels.repeat(16)
        return nn.functional.cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


Window = Callable[[], None]


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def make_loader(task: Vectors) -> DataLoader[Any]:
    return DataLoader(task, batch_size=PER_DEVICE, shuffle=True)  # type: ignore[arg-type]


def new_model(task: Vectors) -> nn.Module:
    torch.manual_seed(0)
    return task.model()


class Recorder:
    """A loss per micro-batch into a file, as a careful person writes it by hand: read once per window."""

    def __init__(self, path: Path):
        self._file, self._pending, self._step = path.open("a"), [], 0

    def add(self, loss: torch.Tensor) -> None:
        self._pending.append((loss.detach(), time.perf_counter()))

    def close(self, norm: torch.Tensor, lr: float) -> None:
        self._step += 1
        values = torch.stack([loss for loss, _ in self._pending]).tolist()
        for value, (_, at) in zip(values, self._pending, strict=True):
            self._file.write(json.dumps({"step": self._step, "loss": value, "at": at}) + "\n")
        self._file.write(json.dumps({"step": self._step, "norm": norm.item(), "lr": lr}) + "\n")
        self._file.flush()
        self._pending.clear()


def by_hand(task: Vectors, world: World, folder: Path) -> Window:
    model = new_model(task)
    wrapped: Any = DistributedDataParallel(model) if world.size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches, recorder = endless(make_loader(task)), Recorder(folder / f"hand-{world.rank}-{random.random()}.jsonl")

    def window() -> None:
        for i in range(ACCUM):
            batch = next(batches)
            with wrapped.no_sync() if world.size > 1 and i < ACCUM - 1 else nullcontext():
                total, weight = task.loss(wrapped, batch)
                loss = total / weight
                (loss / ACCUM).backward()
            recorder.add(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        recorder.close(norm, optimizer.param_groups[0]["lr"])

    return window


def by_samestep(task: Vectors, world: World, folder: Path) -> Window:
    config = validation.read(
        {
            "task": {"_target_": "loop_overhead.Vectors", "width": task.width, "layers": task.layers},
            "optim": {
                "name": "adamw",
                "lr": 1e-3,
                "clip": CLIP,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": 0.01,
            },
            "schedule": {"name": "constant", "warmup": 0},
            "batch": {"mode": "per_device", "size": PER_DEVICE, "remainder": "drop"},
            "hardware": {"device": "cpu", "processes": world.size},
            "sync": {"policy": "accumulate"},
            "precision": {"name": "fp32"},
            "seeding": {"mode": "exact"},
            "lr_scaling": {"rule": "none", "reference": None},
            "link": {"name": "none"},
            "tracker": {"name": "local"},
            "accum": ACCUM,
            "seed": 0,
            "budget": {"epochs": None, "updates": 1_000_000},
            "data": {"shuffle": True, "workers": 0},
            "eval": {"every": None},
            "early_stop": {"metric": None, "mode": "min", "patience": 0, "min_delta": 0.0},
            "log": {"every": 1},
            "nonfinite": "stop",
        }
    )
    device, precision = backend.open_backend(config.hardware.device, world.rank), Precision(PrecisionName.fp32, "cpu")
    plan = make_plan(config)
    experiment = make_experiment(plan, precision, device)
    plan = complete(plan, world, experiment)
    run = rundir.RunFolder(folder / "samestep")
    run.path.mkdir(exist_ok=True)
    training = prepare(plan, run, world, device, precision, experiment)
    windows = iter(training.windows)
    return lambda: update(training, next(windows))


def by_accelerate(task: Vectors, world: World, folder: Path) -> Window:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=ACCUM, cpu=True)
    model = new_model(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, make_loader(task))
    batches, recorder = endless(loader), Recorder(folder / f"accelerate-{world.rank}.jsonl")

    def window() -> None:
        norm = torch.zeros(())
        for _ in range(ACCUM):
            batch = next(batches)
            with accelerator.accumulate(wrapped):
                total, weight = task.loss(wrapped, batch)
                loss = total / weight
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(wrapped.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
            recorder.add(loss)
        recorder.close(norm, optimizer.param_groups[0]["lr"])

    return window


def by_fabric(task: Vectors, world: World, folder: Path) -> Window:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=world.size, strategy="ddp" if world.size > 1 else "auto")
    fabric.launch()
    model = new_model(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    wrapped, optimizer = fabric.setup(model, optimizer)
    batches = endless(fabric.setup_dataloaders(make_loader(task)))
    recorder = Recorder(folder / f"fabric-{world.rank}.jsonl")

    def window() -> None:
        for i in range(ACCUM):
            batch = next(batches)
            with fabric.no_backward_sync(wrapped, enabled=i < ACCUM - 1):
                total, weight = task.loss(wrapped, batch)
                loss = total / weight
                fabric.backward(loss / ACCUM)
            recorder.add(loss)
        norm = fabric.clip_gradients(wrapped, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()
        recorder.close(norm, optimizer.param_groups[0]["lr"])

    return window


CONTENDERS: dict[str, Callable[[Vectors, World, Path], Window]] = {
    "by hand": by_hand,
    "by hand again": by_hand,
    "samestep": by_samestep,
    "accelerate": by_accelerate,
    "fabric": by_fabric,
}


def compete(size: str, rounds: int, folder: Path) -> None:
    """One process of the competition; rank 0 writes every round's seconds of a micro-batch."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        world = World(dist.get_rank(), dist.get_world_size())
    else:
        world = World(0, 1)
    results = _compete(world, size, rounds, folder)
    if world.rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    world.barrier()
    os._exit(0)  # what holds the group would have to go first


def _compete(world: World, size: str, rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    task, windows = Vectors(*SIZES[size]), {}
    for name, make in CONTENDERS.items():
        try:
            windows[name] = make(task, world, folder)
        except ImportError:
            if world.rank == 0:
                print(f"{name}: not installed, left out (pip install '.[bench]')")
    wall: dict[str, list[float]] = {name: [] for name in windows}
    cpu: dict[str, list[float]] = {name: [] for name in windows}
    order = list(windows)
    gc.collect()
    gc.disable()  # a collection would meet one contender, for what all of them left behind
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(order)  # the same order on every process
        for name in order:
            world.barrier()
            start, start_cpu = time.perf_counter(), time.thread_time()
            for _ in range(WINDOWS[size]):
                windows[name]()
            if turn:  # the first round warms up
                wall[name].append((time.perf_counter() - start) / WINDOWS[size] / ACCUM)
                cpu[name].append((time.thread_time() - start_cpu) / WINDOWS[size] / ACCUM)
    return {"wall": wall, "cpu": cpu}


def measure(size: str, processes: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per micro-batch of every contender and round on rank 0: wall, and of its main thread on the CPU."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, __file__, "--compete", folder, "--sizes", size, "--rounds", str(rounds)]
        subprocess.run(command, check=True, timeout=900)
        results: dict[str, dict[str, list[float]]] = json.loads(Path(folder, "results.json").read_text())
    return results


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write every round's seconds there")
    parser.add_argument("--compete", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compete:
        compete(options.sizes[0], options.rounds, options.compete)
    everything = {}
    for size in options.sizes:
        for processes in options.processes:
            results = everything[f"{size}-{processes}"] = measure(size, processes, options.rounds)
            show(size, processes, results)
    if options.json:
        options.json.write_text(json.dumps(everything))


def show(size: str, processes: int, results: dict[str, dict[str, list[float]]]) -> None:
    wall, cpu = results["wall"], results["cpu"]
    base = statistics.median(wall["by hand"]) * 1e6
    print(f"\n{size}, {processes} process(es), accum {ACCUM}: by hand {base:,.0f} us a micro-batch")
    for name in wall:
        ratio = quartiles([s / b for s, b in zip(wall[name], wall["by hand"], strict=True)])
        more = quartiles([(s - b) * 1e6 for s, b in zip(wall[name], wall["by hand"], strict=True)])
        busy = quartiles([(s - b) * 1e6 for s, b in zip(cpu[name], cpu["by hand"], strict=True)])
        print(
            f"  {name:14} x{ratio[1]:.3f} ({ratio[0]:.3f}..{ratio[2]:.3f})  "
            f"wall {more[1]:+7.1f} us ({more[0]:+.1f}..{more[2]:+.1f})  cpu {busy[1]:+7.1f} us ({busy[0]:+.1f}..{busy[2]:+.1f})"
        )


if __name__ == "__main__":
    main()
