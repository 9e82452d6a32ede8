"""`precision.weights=bf16`: weights of 16 bits, whose gradients and losses are summed in 32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

BF16 = ("precision=bf16", 'precision.weights="bf16"')
SPLITS = [(1, 4), (2, 2), (4, 1)]
VALUES = [256.0, 1.0, 1.0, 1.0]  # each is a number of bf16; 257 and 259 are none


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def summed(bench: Bench, processes: int, accum: int, *settings: str, **more: Any) -> Run:
    settings = (*BF16, "data.shuffle=false", "batch.size=4", "optim.lr=0", cpus(processes), f"accum={accum}", *settings)
    return bench.run("Scalar", {"values": VALUES * 2, "watch": True, **more}, *settings)


@pytest.mark.parametrize("seeding", ["exact", "bitwise"])
@pytest.mark.parametrize(("processes", "accum"), SPLITS)
def test_sums_have_32_bits(bench: Bench, processes: int, accum: int, seeding: str) -> None:
    """Over micro-batches and processes: 259 / 4, exactly; the optimizer and the model have 16."""
    run = summed(bench, processes, accum, f"seeding={seeding}")
    assert run.column("grad_norm") == [64.75, 64.75]
    assert run.column("loss") == [64.75, 64.75]
    assert run.weights["w"].dtype is torch.bfloat16
    assert run.watched(processes - 1)[-1]["kinds"] == ["torch.bfloat16"]
    assert run.column("collectives") == [int(processes > 1)] * 2
    assert run.column("bytes") == [run.plan.comm.bytes] * 2


@pytest.mark.parametrize(("processes", "accum"), SPLITS)
def test_sums_control(bench: Bench, processes: int, accum: int) -> None:
    """The control: summed in 16 bits, ones are lost beside 256."""
    run = summed(bench, processes, accum, fault="narrow_sums")
    assert run.column("grad_norm") != [64.75, 64.75]


SHARDED = [
    (2, 2, "accumulate", ("hardware.parallel=fsdp",)),
    (2, 2, "every_batch", ("hardware.parallel=fsdp",)),
    (4, 1, "accumulate_local", ("hardware.parallel=hsdp", "hardware.shard=2")),
]


@pytest.mark.parametrize(("processes", "accum", "policy", "parallel"), SHARDED)
def test_sharded_sums_have_32_bits(
    bench: Bench, processes: int, accum: int, policy: str, parallel: tuple[str, ...]
) -> None:
    """The same, of a parameter that is cut and of one that cannot be; the weights stay of 16 bits."""
    run = summed(bench, processes, accum, f"sync.policy={policy}", *parallel)
    assert run.column("grad_norm") == [64.75, 64.75]
    values = [[v, 0.0] for v in VALUES]
    settings = (*BF16, "data.shuffle=false", "batch.size=4", "optim.lr=0", cpus(processes), f"accum={accum}")
    cut = bench.run("Vector", {"values": values}, *settings, f"sync.policy={policy}", *parallel)
    assert cut.column("grad_norm") == [64.75]
    assert cut.weights["w"].dtype is torch.bfloat16
    if policy == "every_batch":  # the control: micro-batches added up in 16 bits
        wrong = bench.run(
            "Vector", {"values": values, "fault": "narrow_shares"}, *settings, "sync.policy=every_batch", *parallel
        )
        assert wrong.column("grad_norm") != [64.75]


LEARNING = ("optim=adamw", "optim.lr=0.003", "optim.clip=1.0", "batch.size=16", "budget.updates=20")


def test_a_model_learns(bench: Bench) -> None:
    full = bench.run("Text", {"items": 85}, *LEARNING, "accum=8")
    runs = [
        bench.run("Text", {"items": 85}, *LEARNING, *BF16, cpus(p), f"accum={6 // p}", "batch.size=18") for p in (1, 3)
    ]
    assert runs[0].column("loss")[:5] == pytest.approx(runs[1].column("loss")[:5], rel=0.01)
    shares = bench.run(
        "Text", {"items": 85, "depth": 2}, *LEARNING, *BF16, cpus(2), "accum=3", "batch.size=18", "hardware.parallel=fsdp", "sync=every_batch",
    )  # fmt: skip
    whole = bench.run("Text", {"items": 85, "depth": 2}, *LEARNING, *BF16, cpus(2), "accum=3", "batch.size=18")
    assert shares.column("loss")[:5] == pytest.approx(whole.column("loss")[:5], rel=0.01)
    assert {w.dtype for w in shares.weights.values()} == {torch.bfloat16}
    half = bench.run("Text", {"items": 85}, *LEARNING, *BF16, "accum=8")
    assert half.column("loss") == pytest.approx(full.column("loss"), rel=0.03)
    assert half.column("grad_norm")[:5] == pytest.approx(full.column("grad_norm")[:5], rel=0.05)
    assert {w.dtype for w in half.weights.values()} == {torch.bfloat16}


@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (8, 1)])
def test_low_weights_to_the_last_bit(bench: Bench, processes: int, accum: int) -> None:
    settings = (*LEARNING, *BF16, "seeding=bitwise")
    runs = [bench.run("Text", {"items": 85}, *settings, cpus(p), f"accum={a}") for p, a in ((1, 8), (processes, accum))]
    assert runs[0].column("loss", "batches") == runs[1].column("loss", "batches")
    assert runs[0].column("grad_norm") == runs[1].column("grad_norm")
    assert runs[0].folder.model.read_bytes() == runs[1].folder.model.read_bytes()
