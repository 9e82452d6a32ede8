"""Sharded models: the updates of one process, on any number of them, under every policy; each check beside a fault that it catches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.probe_text import Text
from tests.ranks.test_exactness import ITEMS, LEARNING, parting
from tests.running import Bench, Run

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

TASK = {"items": ITEMS, "evaluated": 7, "depth": 2}
FP64 = (*LEARNING, "precision=fp64", "budget.updates=12")
IN_ORDER = ("data.shuffle=false", "optim.lr=0.1")
FSDP = "hardware.parallel=fsdp"
HSDP = ("hardware.parallel=hsdp", "hardware.shard=2")
SETUPS: list[tuple[int, int, str, tuple[str, ...]]] = [
    (2, 4, "accumulate", (FSDP,)),
    (4, 2, "every_batch", (FSDP,)),
    (8, 1, "accumulate", (FSDP,)),
    (2, 4, "no_sync", (FSDP,)),
    (2, 4, "backward_only", (FSDP,)),
    (4, 2, "accumulate", HSDP),
    (4, 2, "every_batch", HSDP),
    (4, 2, "accumulate_local", HSDP),
]


def sharded(
    bench: Bench, task: str, arguments: dict[str, Any], processes: int, accum: int, policy: str, *rest: str
) -> Run:
    where = f"hardware={processes}cpu" if processes > 1 else "hardware=cpu"
    return bench.run(task, arguments, where, f"accum={accum}", f"sync.policy={policy}", *rest)


def unequal(one: Run, other: Run) -> str | None:
    """In what two runs differ, if in anything: rows, evaluations, final weights."""
    if [*one.weights] != [*other.weights]:
        return f"{[*one.weights]} and {[*other.weights]}"
    for name, weight in one.weights.items():
        if not torch.allclose(weight, other.weights[name], rtol=1e-9, atol=1e-9):
            return f"the weight {name}"
    for a, b in zip(one.evals, other.evals, strict=True):
        if abs(a["loss"] - b["loss"]) > 1e-10 or a["weight"] != b["weight"]:
            return f"evaluation {a} and {b}"
    return parting(one, other, 1e-10)


@pytest.mark.parametrize(("processes", "accum", "policy", "parallel"), SETUPS)
def test_sharded_runs_equal_one_process(
    bench: Bench, processes: int, accum: int, policy: str, parallel: tuple[str, ...]
) -> None:
    """Dropout, token weights, AdamW, clipping, an evaluation of seven items, and a short last window that leaves most
    processes without a micro-batch."""
    alone = bench.run("Text", TASK, *FP64, "accum=8")
    run = sharded(bench, "Text", TASK, processes, accum, policy, *FP64, *parallel)
    assert unequal(alone, run) is None
    assert run.column("items")[5] == 5


def test_fp32_agrees_with_ddp(bench: Bench) -> None:
    settings = (*LEARNING, "budget.updates=20")
    ddp = sharded(bench, "Text", TASK, 2, 4, "accumulate", *settings)
    run = sharded(bench, "Text", TASK, 2, 4, "every_batch", *settings, FSDP)
    for rows in ("updates", "batches"):
        assert run.column("loss", rows) == pytest.approx(ddp.column("loss", rows), rel=1e-6)
    assert parting(ddp, run, 1e-4) is None


@pytest.mark.parametrize("fault", ["no_scatter", "stand_in_counts", "norm_of_a_share", "streams_by_rank"])
def test_sharded_control(bench: Bench, fault: str) -> None:
    alone = bench.run("Text", TASK, *FP64, "accum=8")
    wrong = sharded(bench, "Text", TASK | {"fault": fault}, 4, 2, "every_batch", *FP64, FSDP)
    assert unequal(alone, wrong) is not None


@pytest.mark.parametrize(("items", "processes", "accum"), [(1, 4, 2), (3, 2, 4)])
def test_fewer_items_than_processes(bench: Bench, items: int, processes: int, accum: int) -> None:
    arguments = {"items": items, "evaluated": 1, "depth": 1}
    alone = bench.run("Text", arguments, *FP64, "accum=8")
    run = sharded(bench, "Text", arguments, processes, accum, "accumulate", *FP64, FSDP)
    assert unequal(alone, run) is None


def test_the_task_names_its_parts(bench: Bench) -> None:
    """One collective more for every gathering of a part more, and the same updates."""
    alone = bench.run("Text", TASK, *FP64, "accum=8")
    counts = []
    for parts in ([], ["out"], ["block", "out", "more.1"]):
        run = sharded(bench, "Text", TASK | {"shard": parts}, 2, 4, "every_batch", *FP64, FSDP)
        assert unequal(alone, run) is None
        counts.append(run.column("collectives")[0])
    per_pass = [(n - 2) / 4 for n in counts]  # two small ones a window: its sums, the norm
    assert per_pass == [2 + 3 * 0, 2 + 3 * 1, 2 + 3 * 3], "the rest is gathered once a pass, a part in both directions"


# what is sent


@pytest.mark.parametrize(("policy", "scatters"), [("accumulate", 3), ("every_batch", 12)])
def test_everything_sent_is_counted(bench: Bench, policy: str, scatters: int) -> None:
    """Root and two blocks in four passes: five gatherings each; and as the process group itself counts."""
    arguments = {"items": 80, "depth": 2, "watch": True}
    run = sharded(bench, "Text", arguments, 2, 4, policy, *FP64, FSDP)
    assert run.column("collectives") == [4 * 5 + scatters + 2] * 12
    for rank in range(2):
        numbers = [row["sequence"] for row in run.watched(rank)]
        assert [b - a for a, b in pairwise(numbers)] == run.column("collectives")[1:]
    element, weights = 8, run.weights
    even = sum(-(-w.shape[0] // 2) * 2 * (w.numel() // w.shape[0]) for w in weights.values())  # rows cut in two
    blocks = sum(w.numel() for k, w in weights.items() if k.startswith("more."))
    small = 3 * element
    assert run.column("bytes") == [element * (4 * (even + blocks) + even * scatters // 3) + small] * 12
    last = [False, False, False, True] if policy == "accumulate" else [True] * 4
    assert run.column("synced", "batches") == last * 2 * 12


# parameters that are unused, or have no dimensions


@pytest.mark.parametrize("policy", ["accumulate", "every_batch"])
@pytest.mark.parametrize("uses", [["a", "b", "as", ""], ["s", "s", "ab", "b"], ["", "", "", "bs"]])
def test_unused_parameters(bench: Bench, uses: list[str], policy: str) -> None:
    """Processes and micro-batches may use different parameters; AdamW would see one left out, or counted twice."""
    settings = ("data.shuffle=false", "optim=adamw", "optim.lr=0.1", "batch.size=4", "budget.updates=5")
    alone = bench.run("Parts", {"uses": uses}, *settings, "accum=4", "precision=fp64")
    run = sharded(bench, "Parts", {"uses": uses}, 2, 2, policy, *settings, FSDP, "precision=fp64")
    assert unequal(alone, run) is None


def test_parameters_without_dimensions_control(bench: Bench) -> None:
    settings = (*IN_ORDER, "batch.size=4", "budget.updates=5", "precision=fp64")
    alone = bench.run("Parts", {"uses": ["a", "", "s", "b"]}, *settings, "accum=4")
    arguments = {"uses": ["a", "", "s", "b"], "fault": "scalars_apart"}
    assert unequal(alone, sharded(bench, "Parts", arguments, 2, 2, "accumulate", *settings, FSDP)) is not None


# clipping, skipping


@pytest.mark.parametrize("parallel", [(2, (FSDP,)), (4, HSDP)])
def test_clipping_sees_the_whole_gradient(bench: Bench, parallel: tuple[int, tuple[str, ...]]) -> None:
    """A7, over shares: the mean of (3, 0) and (0, 4) has the norm 2.5 and is clipped to 1."""
    processes, how = parallel
    settings = ("data.shuffle=false", "optim.lr=1", "optim.clip=1.0", f"batch.size={processes}")
    values = [[3, 0], [0, 4]] * (processes // 2)
    run = sharded(bench, "Vector", {"values": values}, processes, 1, "accumulate", *settings, *how)
    assert run.column("grad_norm") == pytest.approx([2.5])
    assert run.weights["w"].tolist() == pytest.approx([-0.6, -0.8])


def test_clipping_control(bench: Bench) -> None:
    settings = ("data.shuffle=false", "optim.lr=1", "optim.clip=1.0", "batch.size=2")
    arguments = {"values": [[3, 0], [0, 4]], "fault": "norm_of_a_share"}
    run = sharded(bench, "Vector", arguments, 2, 1, "accumulate", *settings, FSDP)
    assert run.column("grad_norm") != pytest.approx([2.5])


def test_all_skip_what_one_finds(bench: Bench) -> None:
    """The loss of one micro-batch is infinite: the update is left out on every process, and the run goes on as one."""
    uses = ["a", "b", "as", "s", "ab", "!", "", "b", "a", "a", "b", "s"]
    settings = (*IN_ORDER, "batch.size=4", "budget.updates=3", "precision=fp64", "nonfinite=skip")
    alone = bench.run("Parts", {"uses": uses}, *settings, "accum=4")
    run = sharded(bench, "Parts", {"uses": uses}, 2, 2, "every_batch", *settings, FSDP)
    assert run.column("skipped") == [False, True, False]
    assert run.column("loss")[::2] == pytest.approx(alone.column("loss")[::2])
    for name, weight in alone.weights.items():
        assert torch.allclose(weight, run.weights[name])


def test_saved_weights_are_whole(bench: Bench) -> None:
    run = sharded(bench, "Text", TASK, 2, 4, "accumulate", *FP64, FSDP)
    model = Text(items=1, depth=2).model().double()
    assert model.load_state_dict(run.weights).missing_keys == []
    assert {type(w) for w in run.weights.values()} == {torch.Tensor}
