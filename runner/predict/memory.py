"""Peak memory of one device, before the run: a window of the run's own code on tensors without memory.

No weights are allocated, no device is needed, and the other processes are only told to be there. Every number follows
from the task and the plan; what had to be assumed is listed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map_only

from runner.build import build
from runner.choices import Device, PrecisionName, SyncPolicy
from runner.data import Items
from runner.errors import TaskError
from runner.loop import average_and_clip, gradient
from runner.plan import Comm, Memory, Plan
from runner.precision import Precision
from runner.predict.advice import fitting
from runner.predict.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, Ledger, told_apart
from runner.schedule import make_optimizer
from runner.sync import Sync, open_sync
from runner.sync.blocks import checkpoint_blocks
from runner.sync.local import local, optimizer_groups
from runner.sync.objective import Objective
from runner.sync.tree import Line, narrow
from runner.sync.whole import Whole
from runner.task import Adopted, adopt
from runner.world import World

_CPU = torch.device("cpu")  # where the fake tensors are said to be: a build without CUDA knows no other place
PASSES = 2  # the first finds no gradient, the last reduces: further ones between them are as the first or the last


def predicted(plan: Plan) -> Plan:
    """The plan with its peak memory, what would fit where that does not, and what a sharded model sends. Raises TaskError."""
    memory, comm = survey(plan)
    assert memory.peak_bytes is not None
    if memory.capacity is not None and memory.peak_bytes > memory.capacity:
        found, advice = fitting(plan, predict), "no sync policy, accum or checkpointing tried would fit"
        if found is not None:
            typed, better = found
            advice = f"with {typed} it would be {(better.peak_bytes or 0) / 2**30:.2f} GiB"
        memory = memory.model_copy(update={"advice": advice})
    return plan.model_copy(update={"memory": memory, "comm": comm})


def predict(plan: Plan) -> Memory:
    """The peak memory of a full window on the first device, once the optimizer has its state. Raises TaskError."""
    return survey(plan)[0]


def survey(plan: Plan) -> tuple[Memory, Comm]:
    """As `predict`, and what an update of a full window sends; a sharded model's parts are known only here."""
    config = plan.config
    task = adopt(build(config.task.target, **config.task.arguments))
    data = task.train_data()
    items = Items(data, task.collate, config.seed, "item", exact=False)
    batch = items[0, tuple(range(min(plan.arithmetic.per_device, len(data))))]
    ledger = Ledger()
    with _fake_world(plan.arithmetic.processes) as world, FakeTensorMode(allow_non_fake_inputs=True) as fake:
        try:
            sent = _window(plan, world, task, tree_map_only(Tensor, fake.from_tensor, batch), ledger)
        except RuntimeError as error:
            raise TaskError(
                f"the memory of {task.name} cannot be predicted: its model or loss asks for values, or for an operation that has "
                f"no shapes without them ({str(error).splitlines()[0]})"
            ) from error
    memory = Memory(
        peak_bytes=ledger.peak,
        parts=ledger.at_peak,
        capacity=round(config.hardware.memory * 2**30) if config.hardware.memory else None,
        assumptions=tuple(_assumptions(plan)),
    )
    return memory, _of_all_passes(plan, sent) if config.hardware.sharded else plan.comm


def _of_all_passes(plan: Plan, sent: list[tuple[int, int]]) -> Comm:
    """What a window sends whose passes before the last are all as the first; the end of it comes after the last."""
    first, *_, end = sent
    passes = plan.arithmetic.accum
    known = min(passes, PASSES)
    collectives, size = (e + (passes - known) * f for e, f in zip(end, first, strict=True))
    if plan.config.precision.name is PrecisionName.fp16:  # whether a share has overflowed
        collectives, size = collectives + 1, size + 4
    return Comm(reductions=plan.comm.reductions, collectives=collectives, bytes=size)


def _window(plan: Plan, world: World, task: Adopted, batch: Any, ledger: Ledger) -> list[tuple[int, int]]:
    """Build everything as a rank does, then one window under the ledger. Returns the collectives and bytes sent after each
    pass, and in the end."""
    config = plan.config
    precision = Precision(config.precision.name, "cpu", config.precision.weights)
    model = _model(task, precision.weights)
    if config.activation_checkpoint:
        checkpoint_blocks(task, model)
    sync = _open(plan, world, task, model, precision, ledger)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(config, plan.arithmetic.lr, optimizer_groups(parameters))
    if config.hardware.device is Device.cuda and not config.hardware.sharded:
        for group in optimizer.param_groups:  # torch's default there, for parameters that are no DTensors
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
    if precision.weights != precision.sums:
        optimizer.register_step_pre_hook(lambda *_: narrow(parameters))
    for parameter in parameters:  # the state is made here, out of the ledger's sight
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    for tensors, label in (([*model.parameters(), *model.buffers()], WEIGHTS), (state, OPTIMIZER)):
        ledger.enter([local(t.detach()) for t in tensors], label)
    ledger.enter([t for t in tree_leaves(batch) if isinstance(t, Tensor)], ACTIVATIONS)
    passes, sent = min(plan.arithmetic.accum, PASSES), list[tuple[int, int]]()
    with told_apart(ledger), ledger:
        for number in range(1, passes + 1):
            total, _ = sync.forward(batch, number == passes)
            sync.backward(total, number == passes)
            del total
            sent.append((sync.collectives, sync.bytes))
        _, weight = sync.finish()
        average_and_clip([gradient(p) for p in parameters], weight, config.optim.clip, sync.norm)
        optimizer.step()
        optimizer.zero_grad()
    return [*sent, (sync.collectives, sync.bytes)]


def _model(task: Adopted, kind: torch.dtype) -> nn.Module:
    """The model in the number format that a run brings it to. Tensors without memory do not let themselves be swapped as
    `Module.to` does it, so parameters are made anew; what is shared stays shared."""
    model, made = task.model(), dict[int, nn.Parameter]()
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None and old.is_floating_point() and old.dtype is not kind:
                new = made.setdefault(id(old), nn.Parameter(old.detach().to(kind), old.requires_grad))
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(kind)
    return model


def _open(
    plan: Plan, world: World, task: Adopted, model: nn.Module, precision: Precision, ledger: Ledger
) -> Sync:  # fmt: skip
    config = plan.config
    if not config.hardware.sharded:
        for parameter in model.parameters():
            if parameter.requires_grad:
                _after_gradient(parameter, lambda p: ledger.move(p.grad, GRADIENTS))
        if (
            precision.weights != precision.sums
        ):  # sums of its own, which are sent as they lie; nothing to be told but that
            return Line(Objective(task, model, precision), 0, 1, plan.arithmetic.accum)
        if world.size > 1:
            return _Buckets(Objective(task, model, precision), config.sync.policy, ledger)
    return open_sync(plan, world, task, model, precision, _CPU, lambda: None)


class _Buckets(Whole):
    """DistributedDataParallel's memory: a buffer of the whole gradient that stays, into which gradients go when they
    are reduced. DDP itself does not work on tensors without memory."""

    collectives = reductions = bytes = 0
    averaged_over = 1

    def __init__(self, objective: Objective, policy: SyncPolicy, ledger: Ledger):
        self._objective = objective
        self._every = policy in (SyncPolicy.every_batch, SyncPolicy.backward_only)
        self._reducing = False
        parameters = [p for p in objective.model.parameters() if p.requires_grad]
        bucket = torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        ledger.enter([bucket], GRADIENTS)
        for parameter, piece in zip(parameters, torch.split(bucket, [p.numel() for p in parameters]), strict=True):
            _after_gradient(parameter, self._into(piece.view_as(parameter)))

    def forward(self, batch: Any, last: bool) -> tuple[Tensor, Tensor | float]:
        return self._objective(batch)  # type: ignore[no-any-return]

    def backward(self, total: Tensor, last: bool) -> None:
        self._reducing = last or self._every
        total.backward()  # type: ignore[no-untyped-call]

    def finish(self) -> tuple[Tensor, Tensor]:
        total, weight = self._objective.take()
        return total, weight

    def abandon(self) -> None:
        """Nobody waits."""

    def reset(self) -> None:
        self._objective.take()

    def _into(self, piece: Tensor) -> Callable[[Tensor], None]:
        def moved(parameter: Tensor) -> None:
            if self._reducing and parameter.grad is not piece:
                assert parameter.grad is not None
                piece.copy_(parameter.grad)
                parameter.grad = piece

        return moved


def _after_gradient(parameter: Tensor, hook: Callable[[Tensor], None]) -> None:
    parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


@contextmanager
def _fake_world(processes: int) -> Iterator[World]:
    """A world whose other processes do not exist: collectives return at once, with nothing in them."""
    if processes == 1:
        yield World(0, 1)
        return
    dist.init_process_group("fake", rank=0, world_size=processes, store=FakeStore())
    try:
        yield _Pretended(0, processes)
    finally:
        dist.destroy_process_group()


class _Pretended(World):
    """Rank 0 of a world that is not there. A mesh of ranks is read while it is made, so it must be of real numbers."""

    def mesh(self, device: str, shard: int) -> DeviceMesh:
        with unset_fake_temporarily():
            return super().mesh(device, shard)


def _assumptions(plan: Plan) -> Iterator[str]:
    config, a = plan.config, plan.arithmetic
    yield f"a full micro-batch, made of the first {a.per_device} training items"
    yield f"{config.precision.name.value}, {config.optim.name}, " + (
        "activation checkpointing of every block" if config.activation_checkpoint else "no activation checkpointing"
    )
    if config.precision.weights is not None:
        yield f"weights, gathered weights and the optimizer's state in {config.precision.weights.value}; sums of gradients in fp32"
    if a.accum > PASSES:
        yield f"accum {a.accum} as accum {PASSES}: the micro-batches between the first and the last change no peak"
    every = config.sync.policy in (SyncPolicy.every_batch, SyncPolicy.backward_only)
    if a.processes > 1 and not config.hardware.sharded and every and a.accum > 1:
        yield "the run's first window apart: DDP makes its buffer anew there, and for a moment holds the gradient once more"
    if config.hardware.device is not Device.cpu:
        yield "operations need the memory that they need on a CPU; what the allocator loses to fragments, and the device's context and libraries, come on top"
