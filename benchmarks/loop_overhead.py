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
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from runner import backend, rundir, schema
from runner.launch.local import _listen
from runner.launch.warm import CONTEXT
from runner.loop import update
from runner.plan import make_plan
from runner.precision import Precision
from runner.schema import PrecisionName
from runner.task import Task
from runner.worker import complete, make_experiment, prepare
from runner.world import Seat, World, join

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
    config = schema.read(
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
    from lightning_fabric.plugins.environments import LightningEnvironment
    from lightning_fabric.strategies import DDPStrategy

    if world.size > 1:
        place = LightningEnvironment()
        place.global_rank, place.world_size = lambda: world.rank, lambda: world.size  # type: ignore[method-assign]
        fabric = Fabric(accelerator="cpu", devices=world.size, strategy=DDPStrategy(cluster_environment=place))
        fabric.strategy._local_rank = world.rank
    else:
        fabric = Fabric(accelerator="cpu", devices=1)
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


def compete(seat: Seat, size: str, rounds: int, folder: Path, report: Any) -> None:
    """One process of the competition."""
    torch.set_num_threads(1)
    with join(seat, "gloo", 120) as world:
        results = _compete(world, size, rounds, folder)
    report.send(results)


def _compete(world: World, size: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    task, windows = Vectors(*SIZES[size]), {}
    for name, make in CONTENDERS.items():
        try:
            windows[name] = make(task, world, folder)
        except ImportError:
            if world.rank == 0:
                print(f"{name}: not installed, left out (pip install '.[bench]')")
    seconds: dict[str, list[float]] = {name: [] for name in windows}
    order = list(windows)
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(order)  # the same order on every process
        for name in order:
            world.barrier()
            start = time.perf_counter()
            for _ in range(WINDOWS[size]):
                windows[name]()
            if turn:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / WINDOWS[size] / ACCUM)
    return seconds


def measure(size: str, processes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per micro-batch of every contender and round, on rank 0."""
    listener, pipes, ranks = _listen() if processes > 1 else None, [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(processes):
            theirs, ours = CONTEXT.Pipe()
            port = listener.getsockname()[1] if listener else 0
            seat = Seat(rank, processes, rank, 1, port, listener if rank == 0 else None)
            ranks.append(CONTEXT.Process(target=compete, args=(seat, size, rounds, Path(folder), theirs)))
            ranks[-1].start()
            theirs.close()  # so that the end of a rank is heard
            pipes.append(ours)
        results: dict[str, list[float]] = pipes[0].recv()
        for rank in ranks:
            rank.join()
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
    options = parser.parse_args()
    everything = {}
    for size in options.sizes:
        for processes in options.processes:
            results = measure(size, processes, options.rounds)
            everything[f"{size}-{processes}"] = results
            base = results["by hand"]
            print(
                f"\n{size}, {processes} process(es), accum {ACCUM}: by hand {statistics.median(base) * 1e6:,.0f} us a micro-batch"
            )
            for name, seconds in results.items():
                ratio = quartiles([s / b for s, b in zip(seconds, base, strict=True)])
                more = quartiles([(s - b) * 1e6 for s, b in zip(seconds, base, strict=True)])
                print(
                    f"  {name:14} x{ratio[1]:.3f} ({ratio[0]:.3f}..{ratio[2]:.3f})  {more[1]:+8.1f} us ({more[0]:+.1f}..{more[2]:+.1f})"
                )
    if options.json:
        options.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
