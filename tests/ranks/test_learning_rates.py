"""Optimizers, schedules and scaled rates: what the rows say, what the weights became, the same on every setup."""

from __future__ import annotations

from math import cos, pi, sqrt

import pytest
import torch

from tests.running import Bench

pytestmark = pytest.mark.ranks

SETUPS = [(1, 1), (1, 4), (2, 2), (4, 1)]
TEN = ("batch.size=4", "budget.updates=10", "optim.lr=0.5", "data.shuffle=false")


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


SCHEDULES = {
    ("schedule=constant",): [1.0] * 10,
    ("schedule=constant", "schedule.warmup=4"): [0.25, 0.5, 0.75] + [1.0] * 7,
    ("schedule=linear",): [1 - n / 10 for n in range(10)],
    ("schedule=linear", "schedule.end=0.5"): [1 - n / 20 for n in range(10)],
    ("schedule=linear", "schedule.warmup=2"): [0.5, 1.0] + [1 - n / 8 for n in range(8)],
    ("schedule=cosine",): [(1 + cos(pi * n / 10)) / 2 for n in range(10)],
    ("schedule=cosine", "schedule.warmup=5", "schedule.end=0.2"): [n / 5 for n in range(1, 6)]
    + [0.2 + 0.8 * (1 + cos(pi * n / 5)) / 2 for n in range(5)],
    ("schedule=step", "schedule.every=3", "schedule.gamma=0.1"): [10.0 ** -(n // 3) for n in range(10)],
    ("schedule=custom", "schedule._target_=tests.probe_tasks.halves"): [0.5 ** (min(n, 7) // 2) for n in range(10)],
    ("schedule=custom", "schedule._target_=tests.probe_tasks.halves", "schedule.every=3"): [
        0.5 ** (min(n, 7) // 3) for n in range(10)
    ],
    ("schedule=custom", "schedule._target_=torch.optim.lr_scheduler.ExponentialLR", "schedule.gamma=0.9"): [
        0.9**n for n in range(10)
    ],
    (
        "schedule=custom", "schedule._target_=torch.optim.lr_scheduler.MultiStepLR", "schedule.milestones=[2,5]",
        "schedule.warmup=4",
    ): [0.25, 0.5, 0.075, 0.1, 0.1] + [0.01] * 5,
}  # fmt: skip


@pytest.mark.parametrize(("processes", "accum"), SETUPS)
@pytest.mark.parametrize("choices", SCHEDULES, ids=lambda c: "-".join(s.partition("=")[2] for s in c))
def test_schedules(bench: Bench, choices: tuple[str, ...], processes: int, accum: int) -> None:
    """Gradient 1 and plain SGD: w falls by the sum of the rates."""
    run = bench.run("Scalar", {"values": [1] * 8}, *TEN, *choices, cpus(processes), f"accum={accum}")
    rates = [0.5 * factor for factor in SCHEDULES[choices]]
    assert run.column("lr") == pytest.approx(rates)
    assert float(run.weights["w"]) == pytest.approx(1 - sum(rates), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    "choices",
    [c for c in SCHEDULES if len(set(SCHEDULES[c])) > 1],
    ids=lambda c: "-".join(s.partition("=")[2] for s in c),
)
def test_schedules_control(bench: Bench, choices: tuple[str, ...]) -> None:
    """The control: advanced once for every process, no schedule that moves gives the same rates."""
    arguments = {"values": [1] * 8, "fault": "schedule_by_process"}
    run = bench.run("Scalar", arguments, *TEN, *choices, "hardware=2cpu", "accum=2")
    assert run.column("lr") != pytest.approx([0.5 * factor for factor in SCHEDULES[choices]])


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
@pytest.mark.parametrize(("processes", "accum"), SETUPS)
def test_scaled_rates(bench: Bench, processes: int, accum: int, rule: str, factor: float) -> None:
    """The observed batch of 8 against a reference of 2: neither processes nor accum count by themselves."""
    reference = () if rule == "none" else ("lr_scaling.reference=2",)
    settings = ("batch.size=8", "budget.updates=2", "optim.lr=0.1", f"lr_scaling={rule}", *reference)
    run = bench.run("Scalar", {"values": [1] * 8}, *settings, cpus(processes), f"accum={accum}")
    assert run.column("lr") == pytest.approx([0.1 * factor] * 2)
    assert float(run.weights["w"]) == pytest.approx(1 - 0.2 * factor)


def test_scaling_follows_the_observed_batch(bench: Bench) -> None:
    """With a fixed micro-batch, more processes are a larger observed batch, and the rate follows."""
    settings = (
        "batch=per_device",
        "batch.size=2",
        "budget.updates=1",
        "optim.lr=0.1",
        "lr_scaling=sqrt",
        "lr_scaling.reference=2",
    )
    for processes in (1, 2, 4):
        run = bench.run("Scalar", {"values": [1] * 8}, *settings, cpus(processes))
        assert run.column("lr") == pytest.approx([0.1 * sqrt(processes)])


OPTIMIZERS = [
    (("optim=sgd", "optim.momentum=0.9", "optim.nesterov=true", "optim.weight_decay=0.1"),
     lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1)),
    (("optim=adam", "optim.betas=[0.8,0.9]", "optim.eps=1e-6", "optim.weight_decay=0.1"),
     lambda p: torch.optim.Adam(p, 0.05, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)),
    (("optim=adamw", "optim.weight_decay=0.1"), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
    (("optim=custom", "optim._target_=torch.optim.RMSprop", "optim.alpha=0.9"),
     lambda p: torch.optim.RMSprop(p, 0.05, alpha=0.9)),
]  # fmt: skip


@pytest.mark.parametrize(("processes", "accum"), SETUPS)
@pytest.mark.parametrize(("choices", "make"), OPTIMIZERS, ids=["sgd", "adam", "adamw", "custom"])
def test_optimizers(bench: Bench, choices: tuple[str, ...], make: object, processes: int, accum: int) -> None:
    """Twelve updates, clipped, against a loop written out by hand."""
    values = [[3, 0], [0, 4], [-1, 2], [0.1, -0.2], [1, 1], [2, -3]]
    settings = ("optim.lr=0.05", "batch.size=4", "optim.clip=1.0", "data.shuffle=false", "budget.epochs=6")
    run = bench.run("Vector", {"values": values}, *choices, *settings, cpus(processes), f"accum={accum}")
    w = torch.zeros(2, requires_grad=True)
    optimizer = make([w])  # type: ignore[operator]
    data, norms = torch.tensor(values), []
    for _ in range(6):
        for part in (data[:4], data[4:]):
            w.grad = part.mean(0)
            norms.append(float(torch.nn.utils.clip_grad_norm_([w], 1.0)))
            optimizer.step()
    assert run.weights["w"].tolist() == pytest.approx(w.tolist(), rel=1e-5)
    assert run.column("grad_norm") == pytest.approx(norms, rel=1e-6)


@pytest.mark.parametrize(("choices", "make"), OPTIMIZERS, ids=["sgd", "adam", "adamw", "custom"])
def test_optimizers_control(bench: Bench, choices: tuple[str, ...], make: object) -> None:
    """The control: without a reduction every optimizer ends elsewhere."""
    values = [[3, 0], [0, 4], [-1, 2], [0.1, -0.2], [1, 1], [2, -3]]
    settings = (
        "optim.lr=0.05",
        "batch.size=4",
        "optim.clip=1.0",
        "data.shuffle=false",
        "budget.epochs=6",
        "hardware=2cpu",
        "accum=2",
    )
    right = bench.run("Vector", {"values": values}, *choices, *settings)
    wrong = bench.run("Vector", {"values": values, "fault": "no_reduction"}, *choices, *settings)
    assert wrong.weights["w"].tolist() != pytest.approx(right.weights["w"].tolist(), rel=1e-3)
