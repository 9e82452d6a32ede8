"""One rank: read the plan, join the world, seed, build, train, leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import nn

from runner import backend as backends
from runner import rundir, world
from runner.backend import Backend
from runner.build import build
from runner.data import Items, Request, check_dataset, load
from runner.errors import TaskError
from runner.evaluation import Evaluation
from runner.keys import derive
from runner.loop import Training, train
from runner.losses import Losses
from runner.plan import Plan, Sizes
from runner.precision import Precision
from runner.rundir import RunFolder
from runner.schedule import Schedule, make_optimizer
from runner.schema import SeedingMode, SyncPolicy
from runner.seeding import Streams, seed_generators
from runner.sync import open_sync
from runner.task import Adopted, adopt
from runner.world import Seat, World

FINGERPRINT_ITEMS = 8


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is trained, as one process holds it."""

    task: Adopted
    model: nn.Module
    data: Any


def main(folder: RunFolder, seat: Seat) -> None:
    """Run one rank to its end. Whatever goes wrong leaves as an exception."""
    plan = folder.read_plan()
    torch.set_num_threads(seat.threads)
    device = backends.open_backend(plan.config.hardware.device, seat.local_rank)
    with world.join(seat, device.collectives, plan.config.hardware.timeout) as joined:
        run(plan, folder, joined, device)  # in a function of its own: what holds the group is gone when it returns


def run(plan: Plan, folder: RunFolder, world: World, backend: Backend) -> None:
    """Build, train, save."""
    config = plan.config
    precision = Precision(config.precision.name, backend.device.type)
    experiment = make_experiment(plan, precision, backend)
    plan = complete(plan, world, experiment)
    if world.rank == 0:
        rundir.write_text(folder.plan, plan.to_json() + "\n")
    training = prepare(plan, folder, world, backend, precision, experiment)
    try:
        train(training)
    except BaseException:
        _save_rows(training)
        raise
    finally:
        training.batches.close()  # ends the loader's processes
    if world.rank == 0:
        save_model(folder, experiment.model)


def make_experiment(plan: Plan, precision: Precision, backend: Backend) -> Experiment:
    """The task, its data and its model: the same on every process, each made under a stream of its own."""
    config = plan.config
    seed_generators(derive(config.seed, "task"))
    task = adopt(build(config.task.target, **config.task.arguments))
    seed_generators(derive(config.seed, "data"))
    data = task.train_data()
    check_dataset(data, "train_data()")
    seed_generators(derive(config.seed, "model"))
    model = task.model()
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise TaskError(
            f"{task.name}.model returned {type(model).__name__}; it must return a module with parameters to train"
        )
    if plan.disturb:
        disturb(model, derive(config.seed, "twin"))
    return Experiment(task, model.to(backend.device, precision.weights), data)


@torch.no_grad()
def disturb(model: nn.Module, key: int) -> None:
    """Move every weight by one unit in its last place, up or down at random: what a twin starts from."""
    seed_generators(key)
    for p in model.parameters():
        away = torch.where(torch.rand_like(p, dtype=torch.float32) < 0.5, -torch.inf, torch.inf).to(p.dtype)
        p.copy_(torch.nextafter(p, away))


def complete(plan: Plan, world: World, experiment: Experiment) -> Plan:
    """The plan with what only the loaded task can tell. Raises TaskError if the processes hold different data."""
    parameters = sum(p.numel() for p in experiment.model.parameters() if p.requires_grad)
    sizes = Sizes(items=len(experiment.data), parameters=parameters)
    fingerprint = _fingerprint(plan, experiment)
    for rank, theirs in enumerate(world.gather((sizes.items, fingerprint))):
        if theirs != (sizes.items, fingerprint):
            raise TaskError(
                f"train_data() differs between processes: rank {world.rank} has {sizes.items} items (fingerprint {fingerprint}), "
                f"rank {rank} has {theirs[0]} ({theirs[1]}). It must be the same everywhere"
            )
    return plan.with_sizes(sizes, fingerprint, tuple(_model_notes(experiment.model)))


def prepare(
    plan: Plan, folder: RunFolder, world: World, backend: Backend, precision: Precision, experiment: Experiment
) -> Training:
    """Everything that the loop needs."""
    config, task, model = plan.config, experiment.task, experiment.model
    exact = config.seeding.mode is SeedingMode.exact
    windows = plan.windows()
    every_pass = config.sync.policy in (SyncPolicy.every_batch, SyncPolicy.backward_only)
    streams = Streams(config.seed, exact, world.rank, backend.device)
    items = Items(experiment.data, task.collate, config.seed, "item", exact)
    floats = precision.weights if precision.casts_inputs else None
    requests = _Requests(plan, world.rank, every_pass)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(config, plan.arithmetic.lr, parameters)
    every = config.log.every or (10 if backend.reading_waits else 1)
    return Training(
        rank=world.rank,
        windows=windows,
        batches=load(items, requests, config.data.workers, config.seed, backend.device, floats, world.rank),
        streams=streams,
        sync=open_sync(plan, world, task, model, precision),
        parameters=parameters,
        optimizer=optimizer,
        schedule=Schedule(optimizer, config, windows.updates),
        clip=config.optim.clip,
        nonfinite=config.nonfinite,
        losses=Losses(folder, world, backend, every),
        evaluation=Evaluation(plan, world, folder, task, model, streams, precision, backend.device),
        every_pass=every_pass,
    )


class _Requests:
    """The items of every pass of a process, window after window; made anew each time they are asked for."""

    def __init__(self, plan: Plan, rank: int, every_pass: bool):
        self._windows, self._rank, self._every_pass = plan.windows(), rank, every_pass

    def __iter__(self) -> Iterator[Request]:
        for window in self._windows:
            for micro in window.passes(self._rank, self._every_pass):
                if micro.ids:
                    yield window.epoch, micro.ids


def save_model(folder: RunFolder, model: nn.Module) -> None:
    """The final weights on the CPU, in `model.pt`, whole or not at all."""
    beside = folder.model.with_suffix(".partial")
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, beside)
    beside.replace(folder.model)


def _fingerprint(plan: Plan, experiment: Experiment) -> str:
    """A digest of the number of training items and of a few of them, spread evenly, each under its own stream."""
    count = len(experiment.data)
    ids = (
        tuple(sorted({i * (count - 1) // max(1, FINGERPRINT_ITEMS - 1) for i in range(FINGERPRINT_ITEMS)}))
        if count
        else ()
    )
    items = Items(experiment.data, list, plan.config.seed, "fingerprint", exact=True)
    digest = blake2b(str(count).encode(), digest_size=8)
    for item in ids:
        digest.update(_bytes_of(items[0, (item,)]))
    return digest.hexdigest()


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(str(k).encode() + _bytes_of(v) for k, v in sorted(value.items(), key=lambda kv: str(kv[0])))
    if isinstance(value, list | tuple):
        return b"".join(_bytes_of(v) for v in value)
    return value.tobytes() if hasattr(value, "tobytes") else str(value).encode()


def _model_notes(model: nn.Module) -> Iterator[str]:
    kinds = sorted({type(m).__name__ for m in model.modules() if getattr(m, "track_running_stats", False)})
    if kinds:
        yield (
            f"{' and '.join(kinds)}: running statistics are those of rank 0's micro-batches, "
            "so they depend on processes and accum; other normalizations (GroupNorm, LayerNorm) do not"
        )


def _save_rows(training: Training) -> None:
    """Rows not yet written, after a failure; what hinders it must not hide the failure itself."""
    import contextlib

    with contextlib.suppress(Exception):
        training.losses.save()
