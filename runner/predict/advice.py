"""What would fit where a plan does not: the same experiment, set up to need less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from runner.choices import BatchMode, Parallel, SyncPolicy
from runner.errors import ConfigError
from runner.plan import Memory, Plan, make_plan

Predict = Callable[[Plan], Memory]


def fitting(plan: Plan, predict: Predict) -> tuple[str, Memory] | None:
    """The first change that makes the plan fit, as it is typed, and its prediction; None if none of those tried does."""
    for typed, changed in _less(plan):
        memory = predict(changed)
        assert memory.peak_bytes is not None and memory.capacity is not None
        if memory.peak_bytes <= memory.capacity:
            return typed, memory
    return None


def _less(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Changes that keep the updates, the cheap ones first: alone, then each on top of those before it."""
    changes: list[tuple[str, dict[str, Any]]] = []
    config, a = plan.config, plan.arithmetic
    hardware, policy = config.hardware, config.sync.policy
    if a.processes > 1 and not hardware.sharded:
        changes.append(("hardware.parallel=fsdp", {"hardware": {"parallel": Parallel.fsdp}}))
    sharded = hardware.sharded or bool(changes)
    if sharded and a.accum > 1 and policy not in (SyncPolicy.every_batch, SyncPolicy.accumulate_local):
        changes.append(("sync=every_batch", {"sync": {"policy": SyncPolicy.every_batch}}))
    if not config.activation_checkpoint:
        changes.append(("activation_checkpoint=true", {"activation_checkpoint": True}))
    if config.batch.mode is BatchMode.observed and a.per_device % 2 == 0:
        changes.append((f"accum={2 * a.accum}", {"accum": 2 * a.accum}))
    several = [changes[: n + 1] for n in range(1, len(changes))]
    for chosen in [[one] for one in changes] + several:
        values = config.model_dump(by_alias=True)
        for _, change in chosen:
            for key, value in change.items():
                values[key] = {**values[key], **value} if isinstance(value, dict) else value
        try:
            yield " ".join(typed for typed, _ in chosen), make_plan(type(config).model_validate(values))
        except ConfigError:
            continue  # the change does not go with something else
