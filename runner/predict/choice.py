"""batch=auto_memory: the largest micro-batch whose predicted peak fits; accum follows, so the observed batch stays."""

from __future__ import annotations

from collections.abc import Callable

from runner.choices import BatchMode
from runner.errors import ConfigError, Problem, TaskError
from runner.plan import Memory, Plan, make_plan
from runner.predict.capacity import capacity_of
from runner.predict.memory import predict
from runner.window import divisors


def choose(plan: Plan, predict: Callable[[Plan], Memory] = predict) -> Plan:
    """The plan with its micro-batch chosen, where that is still open. Raises ConfigError if none fits, TaskError where
    the memory cannot be predicted."""
    batch = plan.config.batch
    if batch.mode is not BatchMode.auto_memory or batch.per_device is not None:
        return plan
    capacity, source = capacity_of(plan)
    found: dict[int, Memory] = {}

    def fits(size: int) -> bool:
        try:
            found[size] = predict(_with(plan, size)).model_copy(update={"capacity": capacity})
        except TaskError as error:
            raise TaskError(
                f"{error}. With batch.per_device=N batch=auto_memory begins there without asking"
            ) from error
        return (found[size].peak_bytes or 0) <= capacity

    sizes = divisors(plan.arithmetic.per_device)[::-1]
    chosen = _largest(sizes, fits)
    if chosen is None:
        need = found[sizes[-1]].peak_bytes or 0
        what = f"a single item on each device would need {_gib(need)}, and there are {_gib(capacity)} ({source})"
        fix = "Use activation_checkpoint=true, hardware.parallel=fsdp, or a smaller model"
        raise ConfigError([Problem("batch", what, fix)])
    made, memory = _with(plan, chosen), found[chosen]
    next_size = min((s for s in found if s > chosen), default=None)
    note = f"batch=auto_memory chose per_device={chosen} and accum={made.arithmetic.accum}: {_gib(memory.peak_bytes or 0)} predicted of {_gib(capacity)}"
    if next_size is not None:
        note += f"; {next_size} would need {_gib(found[next_size].peak_bytes or 0)}"
    memory = memory.model_copy(update={"assumptions": (*memory.assumptions, f"the memory of a device: {source}")})
    return made.model_copy(update={"memory": memory, "notes": (*made.notes, note)})


def _largest(sizes: list[int], fits: Callable[[int], bool]) -> int | None:
    """The first of descending `sizes` that fits. The very first stands apart: with accum 1 no sum of gradients is held
    between micro-batches. Among the rest a smaller one needs less, so they are halved again and again."""
    if fits(sizes[0]):
        return sizes[0]
    low, high = 1, len(sizes)
    while low < high:
        middle = (low + high) // 2
        if fits(sizes[middle]):
            high = middle
        else:
            low = middle + 1
    return sizes[low] if low < len(sizes) else None


def _with(plan: Plan, per_device: int) -> Plan:
    batch = plan.config.batch.model_copy(update={"per_device": per_device})
    return make_plan(plan.config.model_copy(update={"batch": batch}))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
