"""One rank: read the plan, join the world, seed, build, train, leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from runner import backend as backends
from runner import rundir, world
from runner.backend import Backend, to_device
from runner.build import build
from runner.choices import SeedingMode, SyncPolicy
from runner.compilation import compile_call
from runner.counts import counted
from runner.data import Items, check_dataset, load
from runner.errors import TaskError
from runner.evaluation import Evaluation
from runner.fingerprint import fingerprint
from runner.keys import derive
from runner.loop import Training, train
from runner.losses import Losses
from runner.plan import Plan, Sizes
from runner.precision import Precision, Scaler
from runner.replicas import Buffers, check_alike, share, statistics_note
from runner.retry import Batches, Retry
from runner.rundir import RunFolder
from runner.schedule import Schedule, make_optimizer
from runner.seeding import Streams, seed_generators, use_deterministic_kernels
from runner.sync import Sync, open_sync
from runner.sync.blocks import checkpoint_blocks
from runner.sync.local import local, optimizer_groups, whole_weights
from runner.sync.tree import narrow
from runner.task import Adopted, adopt
from runner.window import Requests
from runner.world import Seat, World


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
    bitwise = config.seeding.mode is SeedingMode.bitwise
    if bitwise:
        use_deterministic_kernels()
    precision = Precision(config.precision.name, backend.device.type, config.precision.weights)
    experiment = make_experiment(plan, precision, backend)
    plan = complete(plan, world, experiment)
    if world.rank == 0:
        rundir.write_text(folder.plan, plan.to_json() + "\n")
    share(world, [*experiment.model.parameters(), *experiment.model.buffers()], backend.device)
    training = prepare(plan, folder, world, backend, precision, experiment)
    try:
        training.evaluation.rehearse()
        train(training)
    except BaseException as error:
        _save_rows(training)
        if bitwise and "deterministic implementation" in str(error):
            what = f"{str(error).split(' does not have')[0]} has no form that gives the same bits each time"
            raise TaskError(f"seeding=bitwise: {what}. Replace it in the model, or use seeding=exact") from error
        raise
    finally:
        training.batches.close()  # ends the loader's processes


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
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise TaskError(f"{task.name}.model has lazy parameters without a shape: put one batch through it in model()")
    # a sharded model goes to the device part by part, when it is cut: whole it may not fit
    model = precision.apply(model, torch.device("cpu") if config.hardware.sharded else backend.device)
    if plan.disturb:
        disturb(model, derive(config.seed, "twin"))
    if config.compile:
        compile_call(model, backend.device)
    return Experiment(task, model, data)


@torch.no_grad()
def disturb(model: nn.Module, key: int) -> None:
    """Move every weight by one unit in its last place, up or down at random: what a twin starts from."""
    seed_generators(key)
    for p in model.parameters():
        values = torch.view_as_real(p) if p.is_complex() else p
        away = torch.where(torch.rand(values.shape) < 0.5, -torch.inf, torch.inf).to(values.device, values.dtype)
        values.copy_(torch.nextafter(values, away))


def complete(plan: Plan, world: World, experiment: Experiment) -> Plan:
    """The plan with what only the loaded task can tell. Raises TaskError if the processes hold different data."""
    parameters = sum(p.numel() for p in experiment.model.parameters() if p.requires_grad)
    sizes = Sizes(items=len(experiment.data), parameters=parameters)
    items = Items(experiment.data, _only, plan.config.seed, "fingerprint", exact=True)
    mine = sizes.items, fingerprint(_Singles(items), sizes.items)
    for rank, theirs in enumerate(world.gather(mine)):
        if theirs != mine:
            raise TaskError(
                f"train_data() differs between processes: rank {world.rank} has {counted(mine[0], 'item')} (fingerprint {mine[1]}), "
                f"rank {rank} has {theirs[0]} ({theirs[1]}). It must be the same everywhere"
            )
    still = (
        "the model is in eval mode and is trained as it is: no dropout, no statistics. Call train() on it in model()"
    )
    statistics = statistics_note(experiment.model)
    _refuse_if_bitwise(plan, statistics)
    notes = statistics + (() if experiment.model.training else (still,))
    return plan.with_sizes(sizes, mine[1], notes)


@dataclass(frozen=True, slots=True)
class _Singles:
    """Items one by one, by their ids."""

    items: Items

    def __getitem__(self, item: int) -> Any:
        return self.items[0, (item,)]


def _only(items: list[Any]) -> Any:
    return items[0]


def prepare(
    plan: Plan, folder: RunFolder, world: World, backend: Backend, precision: Precision, experiment: Experiment
) -> Training:
    """Everything that the loop needs."""
    config, task, model = plan.config, experiment.task, experiment.model
    exact = config.seeding.mode is not SeedingMode.fast
    windows = plan.windows()
    every_pass = config.hardware.sharded or config.sync.policy in (SyncPolicy.every_batch, SyncPolicy.backward_only)
    streams = Streams(config.seed, exact, world.rank, backend.device, config.optim.name == "custom")
    buffers = Buffers(model)
    items = Items(experiment.data, task.collate, config.seed, "item", exact)
    floats = precision.weights if precision.casts_inputs else None

    def batches(first: int = 1, per_device: int | None = None, accum: int | None = None) -> Batches:
        requests = Requests(windows, world.rank, every_pass, first, per_device, accum)
        return load(items, requests, config.data.workers, config.seed, backend.device, floats, world.rank)

    if config.activation_checkpoint:
        checkpoint_blocks(task, model)

    def stand_in() -> Any:
        first = tuple(range(min(plan.arithmetic.per_device, len(experiment.data))))
        return to_device(items[0, first], backend.device, floats)

    sync = open_sync(plan, world, task, model, precision, backend.device, stand_in)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(config, plan.arithmetic.lr, optimizer_groups(parameters))
    if precision.weights != precision.sums:
        optimizer.register_step_pre_hook(lambda *_: narrow(parameters))
    every = config.log.every or (10 if backend.reading_waits else 1)
    losses = Losses(folder, world, backend, every, measured_windows(plan, backend))

    def conclude() -> None:
        if world.rank == 0 and (notes := losses.notes(task.name)):
            add_notes(folder, notes)
        save_model(folder, world, sync, model, config.hardware.copy_size)

    return Training(
        rank=world.rank,
        windows=windows,
        batches=batches(),
        streams=streams,
        sync=sync,
        parameters=parameters,
        optimizer=optimizer,
        scaler=Scaler(config, backend.device, parameters, sync.agree),
        schedule=Schedule(optimizer, config, windows.updates),
        clip=config.optim.clip,
        nonfinite=config.nonfinite,
        losses=losses,
        evaluation=Evaluation(plan, world, folder, task, model, sync, buffers, streams, precision, backend.device),
        after_first=lambda: write_notes(plan, folder, world, streams, buffers),
        before_last_evaluation=conclude,
        compiled=config.compile,
        held=lambda: held(model, optimizer),
        every_pass=every_pass,
        retry=make_retry(plan, folder, world, backend, model, batches) if plan.repeats else None,
    )


def make_retry(
    plan: Plan, folder: RunFolder, world: World, backend: Backend, model: nn.Module, batches: Callable[..., Batches]
) -> Retry:
    """What repeats a window that runs out of memory."""

    def tell(note: str, update: int, per_device: int) -> None:
        print(note)
        if world.rank == 0:
            add_notes(folder, (note,), halved=(*folder.read_plan().halved, (update, per_device)))
            folder.write_status("running", note=note)

    size = plan.arithmetic.per_device, plan.arithmetic.accum
    return Retry(size, world, backend.device, model, batches, tell)


def measured_windows(plan: Plan, backend: Backend) -> int | None:
    """How many windows' peak memory is measured; None: of all. Three show the peak: the optimizer's state comes in the
    first, and in the second DDP makes its buckets anew."""
    wanted = plan.config.log.memory
    if backend.measuring_slows and plan.config.compile:
        return 0  # compiled calls would run as they are written while storages are followed
    if wanted is None:
        return 3 if backend.measuring_slows else None
    return None if wanted else 0


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of a model and its optimizer, as this process holds them."""
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
    return [local(t.detach()) for t in [*model.parameters(), *model.buffers(), *state]]


def write_notes(plan: Plan, folder: RunFolder, world: World, streams: Streams, buffers: Buffers) -> None:
    """Write into the plan what the first window has shown: draws inside the model, buffers that it changed.

    Raises TaskError where such buffers break what was promised.
    """
    notes = buffers.notes()
    _refuse_if_bitwise(plan, notes)
    if streams.model_draws:
        size = plan.arithmetic.per_device
        notes += (
            f"the model draws random numbers (dropout, say), for a micro-batch of {counted(size, 'item')} at a time: they are the same in "
            f"every setup with per_device={size}, which batch=auto keeps, and others where it differs",
        )
    if world.rank == 0:
        add_notes(folder, notes, draws=streams.model_draws)


def add_notes(folder: RunFolder, notes: tuple[str, ...], **facts: Any) -> None:
    """Write more notes into the plan's file, and what else was found out."""
    plan = folder.read_plan()
    plan = plan.model_copy(update={"notes": plan.notes + notes, **facts})
    rundir.write_text(folder.plan, plan.to_json() + "\n")


def _refuse_if_bitwise(plan: Plan, notes: tuple[str, ...]) -> None:
    """Raises TaskError if there are `notes` on what depends on the setup, where nothing may."""
    if notes and plan.config.seeding.mode is SeedingMode.bitwise:
        raise TaskError(f"seeding=bitwise cannot hold: {notes[0]}. Use a model without them, or seeding=exact")


def save_model(folder: RunFolder, world: World, sync: Sync, model: nn.Module, copy_size: int) -> None:
    """The final weights of rank 0, on the CPU, unsharded, in `model.pt`, whole or not at all. All processes must take part."""
    sync.conclude()
    check_alike(world, model, copy_size)
    weights = whole_weights(model)
    if world.rank == 0:
        beside = folder.model.with_suffix(".partial")
        torch.save(weights, beside)
        beside.replace(folder.model)


def _save_rows(training: Training) -> None:
    """Rows not yet written, after a failure; what hinders it must not hide the failure itself."""
    import contextlib

    with contextlib.suppress(Exception):
        training.losses.save()
