"""One reduction per window over a slow link: Samestep beside a hand-written no_sync loop, Accelerate and Lightning Fabric.

    python benchmarks/slow_link.py [--rate 350] [--delay 0] [--rounds 8] [--accum 4] [--accelerator 55 110]

Two processes in network namespaces that a rate-limited pair of devices joins (docs/link.md): TCP, with the kernel's own queues.
All contenders live in the same two processes and in one process group, and take turns in an order that changes. `alone` is
the hand-written loop without any communication. From it, the rate and the gradient's bytes follows the bound that no exact policy can
beat: the link is idle until the last backward begins, and the embedding's gradient comes at its very end,

    bound = max(alone - last backward + bytes / rate,  alone + bytes of the embedding / rate)

`--accelerator F B` puts an accelerator in the place of the CPU's arithmetic: a forward waits F ms and a backward B ms, spread
over the layers, with gradients of full size. On a machine that does other work besides, only this tells contenders apart.
Ratios are to the hand-written loop in the same round, as medians with quartiles.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PER_DEVICE, WINDOWS = 16, 2
POLICIES = {
    "samestep": (),
    "samestep again": (),
    "samestep, 25 MiB buckets": ("sync.bucket_mb=25",),
    "compress=bf16": ("compress=bf16",),
    "compress=powersgd": ("compress=powersgd",),
    "sync=local_sgd": ("sync=local_sgd",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=350.0, help="Mbit/s")
    parser.add_argument("--delay", type=float, default=0.0, help="ms, one way")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--accelerator", type=float, nargs=2, metavar=("F", "B"), help="ms of a forward and a backward")
    parser.add_argument("--json", type=Path, help="write every round's seconds there")
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        compete(options)
        return
    results = launch()
    if options.json:
        options.json.write_text(json.dumps(results))
    show(results, options)


def launch() -> dict[str, Any]:
    """Both ranks, each in its own node; what rank 0 has found."""
    from runner.link.emulated import PORT, EmulatedNodes
    from runner.link.shaping import DEVICE, Shape, address

    rate, delay = (_option(sys.argv, name, plain) for name, plain in (("--rate", 350.0), ("--delay", 0.0)))
    nodes = EmulatedNodes(Shape(2, rate, delay))
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(2):
                told = {"rank": rank, "spaces": nodes.paths[rank], "folder": folder}
                environment = {
                    **os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": DEVICE,
                    "TORCHELASTIC_RUN_ID": "slow_link", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                command = [sys.executable, __file__, *sys.argv[1:], "--rank", json.dumps(told)]
                ranks.append(subprocess.Popen(command, env=environment))
            codes = [r.wait(timeout=900) for r in ranks]
            if any(codes):
                raise SystemExit(f"the ranks ended with {codes}")
            found: dict[str, Any] = json.loads(Path(folder, "results.json").read_text())
            return found
        finally:
            for r in ranks:
                r.kill()
            nodes.close()


def _option(arguments: list[str], name: str, plain: float) -> float:
    return float(arguments[arguments.index(name) + 1]) if name in arguments else plain


def compete(options: argparse.Namespace) -> None:
    """One rank. It enters its node before torch, which has threads, is imported."""
    from runner.link import spaces

    told = options.rank
    spaces.enter(told["spaces"], [sorted(os.sched_getaffinity(0))[told["rank"] % os.cpu_count()]])  # type: ignore[operator]
    import logging

    import torch
    import torch.distributed as dist

    from runner.world import World

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = World(told["rank"], 2)
    results = _compete(world, options, Path(told["folder"]))
    if world.rank == 0:
        Path(told["folder"], "results.json").write_text(json.dumps(results))
    world.barrier()
    os._exit(0)  # what holds the group would have to go first


def _compete(world: Any, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import loop_overhead as peers

    peers.ACCUM, peers.PER_DEVICE = options.accum, PER_DEVICE
    task = encoder(options)
    alone = Alone(task, world, folder, options.accum)
    windows: dict[str, Callable[[], None]] = {
        "no_sync by hand": peers.by_hand(task, world, folder),
        "no_sync by hand again": peers.by_hand(task, world, folder),
        "alone": alone,
    }
    for name, make in (("accelerate", peers.by_accelerate), ("fabric", peers.by_fabric)):
        try:
            windows[name] = make(task, world, folder)
        except ImportError:
            if world.rank == 0:
                print(f"{name}: not installed, left out (pip install '.[bench]')")
    for number, (name, settings) in enumerate(POLICIES.items()):
        windows[name] = by_samestep(settings, world, folder / str(number), options)
    seconds: dict[str, list[float]] = {name: [] for name in windows}
    order = list(windows)
    gc.collect()
    gc.disable()
    for turn in range(options.rounds + 1):
        random.Random(turn).shuffle(order)
        for name in order:
            world.barrier()
            alone.backward = 0.0
            start = time.perf_counter()
            for _ in range(WINDOWS if name != "sync=local_sgd" else 4):  # as many as it takes for one average
                windows[name]()
            if turn:
                count = WINDOWS if name != "sync=local_sgd" else 4
                seconds[name].append((time.perf_counter() - start) / count)
                if name == "alone":
                    seconds.setdefault("last backward", []).append(alone.backward / count / options.accum)
    model = task.model()
    sizes = {n: p.numel() * 4 for n, p in model.named_parameters()}
    return {"seconds": seconds, "bytes": sum(sizes.values()), "embedding": sizes["words.weight"]}


def encoder(options: argparse.Namespace) -> Any:
    """The task: an encoder on reviews, or an accelerator that computes it in a given time."""
    from torch.autograd import Function

    from runner.tasks.reviews import Reviews

    forward, backward = options.accelerator or (0.0, 0.0)

    class Wait(Function):
        @staticmethod
        def forward(ctx: Any, value: Any, there: float, back: float) -> Any:
            ctx.back = back
            time.sleep(there)
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(ctx.back)
            return gradient, None, None

    class Encoder(Reviews):
        def __init__(self, **arguments: Any):
            super().__init__(dropout=0.0, **arguments)
            self.rows = super().train_data()

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

        def model(self) -> Any:
            made = super().model()
            for layer in made.layers if options.accelerator else ():
                layer.register_forward_hook(
                    lambda _m, _i, out: Wait.apply(out, forward / 4e3, backward / 4e3)  # type: ignore[no-untyped-call]
                )
            return made

        def loss(self, model: Any, batch: Any) -> Any:
            tokens, labels = batch
            return super().loss(model, (tokens[:1, :2], labels[:1]) if options.accelerator else batch)

    return Encoder(items=256, vocabulary=options.vocabulary)


class Alone:
    """The hand-written loop with nothing sent; `backward` adds up the seconds of its backwards."""

    def __init__(self, task: Any, world: Any, folder: Path, accum: int):
        import loop_overhead as peers
        import torch

        self.backward, self._task, self._accum = 0.0, task, accum
        self._model = peers.new_model(task)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._batches = peers.endless(peers.make_loader(task))
        self._recorder = peers.Recorder(folder / f"alone-{world.rank}.jsonl")

    def __call__(self) -> None:
        import torch

        for _ in range(self._accum):
            total, weight = self._task.loss(self._model, next(self._batches))
            start = time.perf_counter()
            (total / weight / self._accum).backward()
            self.backward += time.perf_counter() - start
            self._recorder.add(total / weight)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._recorder.close(norm, 1e-3)


def by_samestep(settings: tuple[str, ...], world: Any, folder: Path, options: argparse.Namespace) -> Callable[[], None]:
    from runner import backend, rundir
    from runner.compose.app import compose_one
    from runner.compose.arguments import parse
    from runner.loop import update
    from runner.precision import Precision
    from runner.task import adopt
    from runner.worker import Experiment, complete, prepare

    link = ["link=custom", f"link.rate={options.rate}", f"link.delay={options.delay}"]
    plan = compose_one(
        parse(["task=reviews", "hardware=2node", "batch=per_device", f"batch.size={PER_DEVICE}", f"accum={options.accum}",
               "schedule=constant", "optim.lr=1e-3", "optim.clip=1.0", "budget.updates=1000000", "log.memory=false",
               "batch.remainder=drop", *link, *settings])
    )  # fmt: skip
    device, precision = (
        backend.open_backend(plan.config.hardware.device, world.rank),
        Precision(plan.config.precision.name, "cpu"),
    )
    import loop_overhead as peers

    task = encoder(options)
    experiment = Experiment(adopt(task), peers.new_model(task), task)
    plan = complete(plan, world, experiment)
    run = rundir.RunFolder(folder)
    run.path.mkdir(exist_ok=True)
    training = prepare(plan, run, world, device, precision, experiment)
    windows = iter(training.windows)
    return lambda: update(training, next(windows))


def show(results: dict[str, Any], options: argparse.Namespace) -> None:
    from runner.buckets import GOODPUT

    seconds, size, last = results["seconds"], results["bytes"], results["embedding"]
    carried = options.rate * 1e6 / 8 * GOODPUT
    alone, backward = (statistics.median(seconds[n]) for n in ("alone", "last backward"))
    bound = max(alone - backward + size / carried, alone + last / carried)
    hand = seconds["no_sync by hand"]
    print(
        f"\n{options.rate:g} Mbit/s, {options.delay:g} ms, {size / 1e6:.1f} MB ({last / 1e6:.1f} MB embedding), accum {options.accum}, "
        f"{len(hand)} rounds; seconds a window: alone {alone:.3f} (last backward {backward:.3f}), bound {bound:.3f}"
    )
    fastest = [
        min(r)
        for r in zip(*(seconds[n] for n in ("no_sync by hand", "accelerate", "fabric") if n in seconds), strict=True)
    ]
    for name, values in seconds.items():
        if name == "last backward":
            continue
        print(
            f"  {name:26} {statistics.median(values):.3f} s   x{_text(values, hand)} of by hand   x{_text(values, fastest)} of the round's "
            f"fastest peer   x{statistics.median(values) / bound:.3f} of the bound"
        )


def _text(values: list[float], others: list[float]) -> str:
    ratios = [a / b for a, b in zip(values, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}..{high:.3f})"


if __name__ == "__main__":
    main()
