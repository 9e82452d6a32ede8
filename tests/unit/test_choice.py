"""batch=auto_memory: which micro-batch is chosen, what is said of it, and what it does not go with."""

from __future__ import annotations

import json

import pytest

from runner.errors import ConfigError
from runner.plan import Memory, Plan
from runner.predict.choice import choose
from tests.running import plan_of

MIB = 2**20


def open_plan(processes: int, size: int, gib: float, *rest: str) -> Plan:
    settings = (f"hardware.processes={processes}", f"batch.size={size}", f"hardware.memory={gib}", *rest)
    return plan_of("Scalar", {}, "batch=auto_memory", *settings)


def chosen(plan: Plan, fixed: int = 100, sums: int = 0) -> tuple[Plan, list[int]]:
    """A model that needs 1 MiB an item, `fixed` MiB besides, and `sums` more where gradients wait for others; and the
    sizes that were asked about."""
    asked: list[int] = []

    def predict(plan: Plan) -> Memory:
        a = plan.arithmetic
        asked.append(a.per_device)
        return Memory(peak_bytes=(a.per_device + fixed + (sums if a.accum > 1 else 0)) * MIB)

    return choose(plan, predict), asked


@pytest.mark.parametrize(
    ("processes", "size", "mib", "sums", "per_device", "accum"),
    [
        (1, 256, 356, 0, 256, 1),
        (1, 256, 355, 0, 128, 2),
        (2, 256, 164, 0, 64, 2),
        (2, 256, 163, 0, 32, 4),
        (1, 256, 101, 0, 1, 256),
        (3, 90, 116, 0, 15, 2),  # the divisors of 30
        (3, 90, 109, 0, 6, 5),
        (1, 64, 164, 200, 64, 1),  # with accum 1 no sum waits: what is true of 32 is not true of 64
        (1, 64, 170, 40, 64, 1),
        (1, 64, 163, 60, 2, 32),
    ],
)
def test_the_largest_that_fits(processes: int, size: int, mib: int, sums: int, per_device: int, accum: int) -> None:
    plan = open_plan(processes, size, mib / 1024)
    made, asked = chosen(plan, sums=sums)
    a = made.arithmetic
    assert (a.per_device, a.accum, a.observed) == (per_device, accum, size)
    assert made.experiment == plan.experiment
    assert len(asked) <= 6
    assert made.memory.peak_bytes is not None
    assert made.memory.peak_bytes <= round(mib * MIB) == made.memory.capacity
    assert f"chose per_device={per_device} and accum={accum}" in made.notes[-1]
    again = Plan.from_json(made.to_json())
    assert choose(again, lambda _: pytest.fail("it is chosen")) is again


def test_the_next_larger_one_does_not_fit() -> None:
    for mib in range(101, 400, 7):
        made, _ = chosen(open_plan(1, 240, mib / 1024))
        larger = [n for n in range(made.arithmetic.per_device + 1, 241) if 240 % n == 0]
        assert not larger or larger[0] + 100 > mib
        assert not larger or f"; {larger[0]} would need" in made.notes[-1]


def test_none_fits() -> None:
    with pytest.raises(ConfigError, match=r"a single item on each device would need 101\.00 MiB, and there are 50\.00"):
        chosen(open_plan(1, 64, 50 / 1024))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("batch.size=63",), "batch.size: 63 cannot be divided by 2 processes = 2. .* batch.size=62 or batch.size=64"),
        (("accum=4",), "accum: 4 was given, but batch=auto_memory derives it. Leave accum out"),
        (("seeding=bitwise",), "batch: seeding=bitwise holds for one per_device"),
        (("sync=every_batch",), "sync: batch=auto_memory repeats windows .* Use sync=accumulate"),
        (("batch.per_device=24",), "batch.size: 64 cannot be divided by 2 processes x per_device 24 = 48"),
        (("hardware.device=xla",), "batch: auto_memory cannot ask a TPU"),
    ],
)
def test_refusals(settings: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        open_plan(2, 64, 1, *settings)


def test_without_a_device() -> None:
    """A GPU's memory can be asked for where there is one, else it must be told."""
    plan = plan_of("Scalar", {}, "batch=auto_memory", "hardware=gpu", "batch.size=8")
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=r"hardware.memory: .* no GPU to ask. Set hardware.memory=80"):
        choose(plan, lambda _: Memory(peak_bytes=1))


def test_the_machine_is_asked() -> None:
    made = choose(plan_of("Scalar", {}, "batch=auto_memory", "batch.size=8"), lambda _: Memory(peak_bytes=1))
    assert made.memory.capacity is not None
    assert 2**20 < made.memory.capacity < 2**50
    assert any("free memory of this machine" in line for line in made.memory.assumptions)
    assert json.loads(made.to_json())["config"]["batch"]["per_device"] == 8
