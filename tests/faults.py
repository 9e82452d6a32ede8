"""Deliberate faults, planted inside a rank: what the checks of sameness must catch.

Each is a mistake that software of this kind really makes. A probe task plants the one that its argument `fault`
names when it is made, which is before the rank builds anything else.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from runner import data, evaluation, loop, losses, precision, schedule, seeding, window
from runner.keys import derive
from runner.sync import objective, tree
from tests import policy_faults


def plant(name: str) -> None:
    """Break this rank in the named way. Raises RuntimeError outside a rank, which would break the tests themselves."""
    if multiprocessing.parent_process() is None:
        raise RuntimeError(f"the fault {name} belongs into a rank")
    FAULTS[name]()


def _rank() -> int:
    return int(os.environ["RANK"])


def mean_of_means() -> None:
    """Every micro-batch is averaged by itself, and the averages averaged."""
    check = objective.check_loss

    def averaged(result: Any, task: Any) -> Any:
        total, weight = check(result, task)
        return total / weight, 1.0

    objective.check_loss = evaluation.check_loss = averaged


def no_reduction() -> None:
    """Nothing is summed over the processes, and the guard that compares their weights in the end is asleep."""
    from runner import worker
    from runner.sync.ddp import Ddp

    worker.check_alike = lambda *_: None

    def kept(self: Any, _state: object, bucket: Any) -> Any:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    kept.__annotations__.update(Ddp._reduce.__annotations__)  # DDP looks at them
    Ddp._reduce = kept


def streams_by_rank() -> None:
    """The random draws inside the model depend on the process."""
    plain = seeding.Streams.micro_batch

    def by_rank(self: Any, update: int, index: int) -> None:
        plain(self, update, index + 1000 * _rank())

    seeding.Streams.micro_batch = by_rank


def streams_by_worker() -> None:
    """Items draw from whatever stream the process or the loader worker is at."""
    data.Items.__getitem__ = lambda self, request: self._collate(self._read(request[1]))


def lost_tail() -> None:
    """The items of a window that fill no whole micro-batch are lost."""
    plain = window.Window.passes

    def cut(self: Any, rank: int, every: bool) -> Any:
        passes = plain(self, rank, every)
        whole = [m if len(m.ids) == self.per_device else replace(m, ids=()) for m in passes]
        return whole if os.environ["WORLD_SIZE"] != "1" else [m for m in whole if m.ids]  # alone, nobody waits

    window.Window.passes = cut


def order_by_rank() -> None:
    """Every process shuffles for itself."""
    plain = window.epoch_order
    window.epoch_order = lambda items, epoch, seed, shuffle: plain(items, epoch, seed + _rank(), shuffle)


def same_order() -> None:
    """Every epoch has the order of the first."""
    plain = window.epoch_order
    window.epoch_order = lambda items, epoch, seed, shuffle: plain(items, 1, seed, shuffle)


def schedule_by_process() -> None:
    """The schedule advances once for every process."""
    plain = schedule.Schedule.advance

    def several(self: Any) -> None:
        for _ in range(int(os.environ["WORLD_SIZE"])):
            plain(self)

    schedule.Schedule.advance = several


def schedule_by_window() -> None:
    """The schedule advances with every window, applied or not."""
    plain = loop.update

    def update(training: Any, now: Any) -> None:
        training.schedule._done = now.update - 1
        training.schedule._apply()
        plain(training, now)

    loop.update = update


def eval_disturbs() -> None:
    """An evaluation leaves the generators where it has brought them."""

    @contextmanager
    def aside(self: Any, purpose: str, *parts: int) -> Any:
        seeding.seed_generators(derive(self.seed, purpose, *parts))
        yield

    seeding.Streams.aside = aside


def eval_mode_stays() -> None:
    """An evaluation leaves the model in evaluation mode: no dropout from then on."""
    plain = evaluation.Evaluation.run

    def run(self: Any, update: int, epoch: int) -> bool:
        stop = plain(self, update, epoch)
        self._model.eval()
        return stop

    evaluation.Evaluation.run = run


def eval_mean_of_ranks() -> None:
    """An evaluation averages the averages of the processes."""

    def averaged(shares: list[Any]) -> Any:
        names = {name for share in shares for name in share}
        found = {n: [sum(s[n][0]) / sum(s[n][1]) for s in shares if n in s] for n in names}
        return {n: (sum(values), float(len(values))) for n, values in found.items()}

    evaluation._add = averaged


def eval_alone() -> None:
    """Every process decides by its own share of the evaluation."""
    plain = evaluation._add
    evaluation._add = lambda shares: plain([shares[_rank()]])


def skip_alone() -> None:
    """A process skips an update for its own micro-batches, not for the window's sum."""
    losses.Losses.look = lambda self, values: [float(sum(m.total for m in self._micros)), 1.0, 1.0, 0.0]


def overflow_alone() -> None:
    """Only the first process sees that a gradient has overflown."""
    plain = precision.Scaler.unscale

    def unscale(self: Any) -> None:
        plain(self)
        self.overflow *= _rank() == 0

    precision.Scaler.unscale = unscale


def scale_forgotten() -> None:
    """Gradients are clipped and applied as they are, with the scale in them."""

    def unscale(self: Any) -> None:
        self.value, self.overflow = self._torch.scale(self._one), torch.zeros(())
        self.update = lambda: None

    precision.Scaler.unscale = unscale


def narrow_sums() -> None:
    """The gradients of bf16 weights are summed in bf16, too."""
    from runner import worker

    plain = worker.open_sync

    def narrowed(plan: Any, world: Any, task: Any, model: Any, precision: Any, *rest: Any) -> Any:
        precision.sums = precision.weights
        return plain(plan, world, task, model, precision, *rest)

    worker.open_sync = narrowed


def narrow_shares() -> None:
    """Shares of the gradients of bf16 weights are summed in bf16."""
    from runner.sync import fsdp

    fsdp.keep_wide = lambda *_: None


def overflow_of_a_share() -> None:
    """A process that holds shares goes by what it sees in them."""
    from runner.sync.fsdp import Fsdp

    Fsdp.agree = lambda _, flag: flag


def fixed_sizes() -> None:
    """A model is compiled for the sizes that it sees, whatever they are."""
    plain = torch.compile
    torch.compile = lambda call, dynamic: plain(call)
    loop.uncompiled = lambda wanted: nullcontext()


def tree_in_order() -> None:
    """Micro-batches are added one after another inside a process, not as a tree."""
    tree.neighbours = lambda below, top, odd: True


def small_buckets() -> None:
    """No fault: gradients are cut into buckets of 64 elements, so that a small model has many."""
    tree.TREE_BUCKET_BYTES = 256


def full_precision() -> None:
    """`precision=bf16` without its autocast."""
    from runner.precision import Precision

    Precision.forward = lambda self: nullcontext()


def no_scatter() -> None:
    """A sharded model's gradients are not summed: every process keeps its own share of its own gradient."""
    from runner.sync import fsdp

    def kept(self: Any, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])

    fsdp._Scatter.__call__ = kept


def stand_in_counts() -> None:
    """What a process computes only to take part counts like its own."""
    from runner.sync import fsdp

    plain = fsdp.Fsdp.forward
    fsdp.Fsdp.forward = lambda self, batch, last: plain(self, self._stand_in() if batch is None else batch, last)


def norm_of_a_share() -> None:
    """A process clips by the norm of its own share of the gradient."""
    from runner.sync import fsdp, local

    fsdp.Fsdp.norm = lambda self, gradients: local.norm_of([local.local(g) for g in gradients])


def scalars_apart() -> None:
    """The gradients of the parameters that cannot be cut are not summed over the processes."""
    from runner.sync import fsdp

    plain = fsdp.Fsdp.finish

    def finish(self: Any) -> Any:
        own = [p.grad for p in self._scalars]
        sums = plain(self)
        for parameter, gradient in zip(self._scalars, own, strict=True):
            parameter.grad = gradient
        return sums

    fsdp.Fsdp.finish = finish


def peak_stays() -> None:
    """The peak of memory is that of the process, not of the window."""
    from runner.backend.meter import Meter

    Meter.restart = lambda self: None


FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        mean_of_means, no_reduction, streams_by_rank, streams_by_worker, lost_tail, order_by_rank,
        same_order, schedule_by_process, schedule_by_window, eval_disturbs, eval_mode_stays, eval_mean_of_ranks, eval_alone,
        skip_alone, full_precision, tree_in_order, small_buckets,
        overflow_alone, scale_forgotten, fixed_sizes, narrow_sums, narrow_shares, overflow_of_a_share,
        policy_faults.never_averaged, policy_faults.evaluated_apart,
        no_scatter, stand_in_counts, norm_of_a_share, scalars_apart, peak_stays,
    )
}  # fmt: skip
