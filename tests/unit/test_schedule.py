"""Built-in schedules in numbers, and how they are put upon an optimizer with several groups."""

from __future__ import annotations

import pytest
import torch

from runner.schedule import Schedule, decay
from runner.schema import Config, Constant, Decay, Step
from tests.running import plan_of


def config(*settings: str) -> Config:
    return plan_of("Scalar", None, "batch.size=1", *settings).config


@pytest.mark.parametrize(
    ("schedule", "updates", "factors"),
    [
        (Constant(name="constant", warmup=0), 4, {0: 1, 3: 1, 99: 1}),
        (Decay(name="linear", warmup=0, end=0.0), 4, {0: 1, 1: 0.75, 2: 0.5, 4: 0, 5: 0}),
        (Decay(name="linear", warmup=0, end=0.2), 4, {0: 1, 2: 0.6, 4: 0.2, 9: 0.2}),
        (Decay(name="linear", warmup=2, end=0.0), 6, {0: 1, 2: 1, 4: 0.5, 6: 0}),
        (Decay(name="cosine", warmup=0, end=0.0), 4, {0: 1, 1: 0.8535534, 2: 0.5, 3: 0.1464466, 4: 0, 7: 0}),
        (Decay(name="cosine", warmup=2, end=0.5), 6, {2: 1, 4: 0.75, 6: 0.5}),
        (Decay(name="cosine", warmup=4, end=0.0), 4, {0: 1, 4: 1}),
        (Step(name="step", warmup=0, every=3, gamma=0.5), 9, {0: 1, 2: 1, 3: 0.5, 5: 0.5, 6: 0.25}),
    ],
)
def test_factors(schedule: Constant | Decay | Step, updates: int, factors: dict[int, float]) -> None:
    factor = decay(schedule, updates)
    assert {done: factor(done) for done in factors} == pytest.approx(factors, abs=1e-7)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_decay_never_rises(name: str) -> None:
    factor = decay(Decay(name=name, warmup=3, end=0.1), 50)  # type: ignore[arg-type]
    factors = [factor(n) for n in range(60)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(0.1)


def rates(choices: tuple[str, ...], updates: int, steps: int) -> list[list[float]]:
    """The rates of two groups, 1.0 and 0.1, before each of `steps` updates."""
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.1}])
    schedule = Schedule(optimizer, config(*choices), updates)
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        assert schedule.lr == found[-1][0]
        optimizer.step()
        schedule.advance()
    return found


@pytest.mark.parametrize(
    ("choices", "factors"),
    [
        (("schedule=linear", "schedule.warmup=2"), [0.5, 1.0, 1.0, 0.5]),
        (("schedule=step", "schedule.every=2", "schedule.warmup=4"), [0.25, 0.5, 0.075, 0.1]),
        (("schedule=custom", "schedule._target_=torch.optim.lr_scheduler.ExponentialLR", "schedule.gamma=0.5"), [1, 0.5, 0.25, 0.125]),
        (
            ("schedule=custom", "schedule._target_=torch.optim.lr_scheduler.ExponentialLR", "schedule.gamma=0.5", "schedule.warmup=2"),
            [0.5, 0.5, 0.25, 0.125],
        ),
        (("schedule=custom", "schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR", "schedule.T_max=2"), [1, 0.5, 0, 0.5]),
        (("schedule=custom", "schedule._target_=tests.probe_tasks.halves", "schedule.every=1"), [1, 0.5, 0.25, 0.125]),
    ],
)  # fmt: skip
def test_every_group_keeps_its_own_rate(choices: tuple[str, ...], factors: list[float]) -> None:
    found = rates(choices, 4, 4)
    assert [r for pair in found for r in pair] == pytest.approx([r for f in factors for r in (f, 0.1 * f)], abs=1e-9)
