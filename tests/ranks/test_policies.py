"""Policies that change the mathematics: what each does, against the same thing worked out by hand with plain SGD."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from runner.compare.session import compare
from runner.compare.verdict import Kind
from runner.keys import derive
from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

IN_ORDER = ("data.shuffle=false", "optim.lr=0.1", "hardware=2cpu")
near = pytest.approx


# local_sgd


VALUES = [1.0, 5.0, 2.0, -4.0, 3.0, 8.0, -1.0, 4.0, 6.0, 2.0, 7.0, 0.5, 9.0]  # six windows of two, and one of one item


@dataclass
class Local:
    """Local SGD by hand: two processes, one item each."""

    start: int
    every: int
    clip: float | None = None
    w: list[float] = field(default_factory=lambda: [0.0, 0.0])
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evals: list[float] = field(default_factory=list)

    def train(self, values: list[float]) -> Local:
        windows = [values[i : i + 2] for i in range(0, len(values), 2)]
        since = 0
        for number, window in enumerate(windows):
            if since == self.every:
                self.average()
                since = 0
            own = [sum((self.w[r] - v) ** 3 / 100 for v in window[r : r + 1]) for r in range(2)]
            self.losses.append(sum((self.w[r] - v) ** 4 / 400 for r, v in enumerate(window)) / len(window))
            exact = number < self.start
            steps = [sum(own) / len(window)] * 2 if exact else [2 * g / len(window) for g in own]
            norm = (sum(s * s for s in steps) / 2) ** 0.5
            self.norms.append(norm)
            factor = min(1.0, self.clip / (norm + 1e-6)) if self.clip else 1.0
            self.w = [w - 0.1 * factor * s for w, s in zip(self.w, steps, strict=True)]
            since += not exact
            mean = sum(self.w) / 2
            self.evals.append(sum((mean - v) ** 4 / 400 for v in values[:4]) / 4)
        self.average()
        return self

    def average(self) -> None:
        self.w = [sum(self.w) / 2] * 2


def local(bench: Bench, start: int, every: int, *settings: str, **more: Any) -> Run:
    settings = ("sync=local_sgd", f"sync.start={start}", f"sync.every={every}", "batch.size=2", *settings)
    return bench.run("tests.probe_policies.Quartic", {"values": VALUES, **more}, *IN_ORDER, *settings)


@pytest.mark.parametrize(("start", "every", "clip"), [(0, 3, None), (2, 2, 0.5), (0, 1, None)])
def test_local_updates(bench: Bench, start: int, every: int, clip: float | None) -> None:
    """Every process goes its own way from `start` on and meets the others every few updates and at the end; losses are
    those of all processes, a short window counts by its weight, clipping is the same for all."""
    run = local(bench, start, every, f"optim.clip={clip or 'null'}", "eval.every=1")
    right = Local(start, every, clip).train(VALUES)
    assert float(run.weights["w"]) == near(right.w[0])
    assert run.column("loss") == near(right.losses)
    assert run.column("grad_norm") == near(right.norms)
    assert run.column("loss", "evals") == near(right.evals), "of the averaged weights"
    assert run.column("weight") == [2.0] * 6 + [1.0]
    averaged = [start + every * n + 1 for n in range(1, 8)]  # the window before whose first forward they are averaged
    sent = [1 if u <= start else 1 + (u in averaged) for u in range(1, 8)]
    assert run.column("collectives") == sent
    assert run.column("bytes") == [12 if u <= start else 24 + 4 * (u in averaged) for u in range(1, 8)]


def test_local_updates_alone_are_exact(bench: Bench) -> None:
    """With SGD and an average after each update nothing is lost; with fewer averages something is."""
    exact = bench.run("tests.probe_policies.Quartic", {"values": VALUES}, *IN_ORDER, "batch.size=2")
    assert local(bench, 0, 1).column("loss")[0] == exact.column("loss")[0]
    assert float(local(bench, 0, 1).weights["w"]) == near(float(exact.weights["w"]))
    assert float(local(bench, 0, 3).weights["w"]) != near(float(exact.weights["w"]))


def test_local_updates_know_no_evaluation(bench: Bench) -> None:
    """Evaluated or not, at any time: the same updates, to the last bit."""
    evaluated, plain = local(bench, 0, 3, "eval.every=1"), local(bench, 0, 3)
    assert evaluated.column("loss") == plain.column("loss")
    assert evaluated.weights["w"] == plain.weights["w"]


@pytest.mark.parametrize("fault", ["never_averaged", "evaluated_apart"])
def test_local_updates_control(bench: Bench, fault: str) -> None:
    """The control: weights that stay apart stop the run; each process's own are evaluated to something else."""
    if fault == "never_averaged":
        settings = ("sync=local_sgd", "sync.start=0", "sync.every=3", "batch.size=2")
        run = bench.fail("tests.probe_policies.Quartic", {"values": VALUES, "fault": fault}, *IN_ORDER, *settings)
        assert "hold different weights" in run.folder.read_status()["reason"]
    else:
        run = local(bench, 0, 3, "eval.every=1", fault=fault)
        assert run.column("loss", "evals") != near(Local(0, 3).train(VALUES).evals)


# compress=bf16, fp16


@pytest.mark.parametrize(
    ("name", "values", "sums"),
    [
        ("none", [256, 1, 1, 1], [259, 259, 259]),
        ("bf16", [256, 1, 1, 1], [258, 258, 258]),  # 257 is no number of bf16
        ("fp16", [2048, 1, 1, 1], [2051, 2050, 2050]),  # nor 2049 of fp16; the first window is sent in full
    ],
)
@pytest.mark.parametrize("policy", ["accumulate", "no_sync"])
def test_narrow_gradients(bench: Bench, policy: str, name: str, values: list[float], sums: list[int]) -> None:
    """Each process's share is rounded on its way, and no more than that: losses and weights are exact."""
    settings = ("batch.size=4", "accum=2", "optim.lr=0", f"compress={name}", f"sync={policy}")
    run = bench.run("Scalar", {"values": values * 3, "watch": True}, *IN_ORDER, *settings)
    assert run.column("grad_norm") == [s / 4 for s in sums]
    assert run.column("loss") == [sum(values) / 4] * 3
    assert run.column("collectives")[1:] == [run.plan.comm.collectives] * 2 == [1 if name == "none" else 2] * 2
    assert run.column("bytes")[1:] == [run.plan.comm.bytes] * 2 == [12 if name == "none" else 14] * 2
    assert run.watched(1)[-1]["all_reduces"] == run.plan.comm.collectives


def test_fp16_is_cut_not_lost(bench: Bench) -> None:
    """A gradient far above the scale is cut to the range, once; the scale follows."""
    settings = ("batch.size=2", "optim.lr=0", "compress=fp16")
    run = bench.run("Scalar", {"values": [1, 1, 1e6, 1, 1e6, 1, 1, 1]}, *IN_ORDER, *settings)
    norms = run.column("grad_norm")
    assert 1 < norms[1] < norms[2] < 5e5
    assert norms[3] == 1.0
    assert run.column("loss")[1] == near(500000.5)


# compress=powersgd


class LowRank:
    """PowerSGD by hand, for two processes of one item in a window of two."""

    def __init__(self, rank: int, start: int, feedback: bool = True):
        self.start, self.feedback = start, feedback
        generator = torch.Generator().manual_seed(derive(42, "powersgd"))
        self.right = torch.randn(8, rank, generator=generator).double()
        self.lost = [torch.zeros(8, 8, dtype=torch.float64) for _ in range(2)]
        self.w = torch.zeros(8, 8, dtype=torch.float64)

    def train(self, items: torch.Tensor) -> torch.Tensor:
        for first in range(0, len(items), 2):
            window = items[first : first + 2, :8].double()
            if window.isnan().any():
                continue
            shares = [window[r] / len(window) if r < len(window) else torch.zeros(8, 8).double() for r in range(2)]
            if first // 2 < self.start:
                self.w -= 0.1 * sum(shares)
                continue
            whole = [s + lost for s, lost in zip(shares, self.lost, strict=True)]
            left = torch.linalg.qr(sum(whole) @ torch.linalg.qr(self.right).Q).Q
            self.right = sum(m.T @ left for m in whole)
            product = left @ self.right.T
            self.w -= 0.1 * product
            if self.feedback:
                self.lost = [m - product / 2 for m in whole]
        return self.w


@pytest.mark.parametrize(("rank", "start", "nan"), [(1, 0, []), (2, 2, []), (2, 0, [4])])
def test_low_rank_gradients(bench: Bench, rank: int, start: int, nan: list[int]) -> None:
    """Factors, what is lost added to the next gradient, a short window by its weight, a window that is left out leaving
    nothing behind; a vector is sent as it is."""
    settings = (
        "batch.size=2",
        "compress=powersgd",
        f"compress.rank={rank}",
        f"compress.start={start}",
        "nonfinite=skip",
    )
    run = bench.run("tests.probe_policies.Tables", {"items": 13, "nan": nan}, *IN_ORDER, *settings)
    items = torch.randn(13, 9, 8, generator=torch.Generator().manual_seed(3))
    items[nan] = torch.nan
    right = LowRank(rank, start).train(items)
    assert run.weights["w"].double().flatten().tolist() == near(right.flatten().tolist(), rel=1e-4, abs=1e-6)
    other = LowRank(rank, start, feedback=False).train(items)
    assert not torch.allclose(run.weights["w"].double(), other, rtol=1e-2), "the control: without what was lost"
    windows = [items[i : i + 2, 8] for i in range(0, 13, 2)]
    vector = -0.1 * sum(w.mean(0) for w in windows if not w.isnan().any())
    assert run.weights["b"].tolist() == near(vector.tolist(), rel=1e-5, abs=1e-7)
    assert run.column("skipped") == [w.isnan().any().item() for w in windows]
    sent = [8 + 4 * 72 if u < start else 8 + 4 * (8 + 8 * rank) + 4 * 8 * rank for u in range(7)]
    assert run.column("bytes") == sent
    assert run.column("collectives") == [2 if u < start else 3 for u in range(7)]


# all of them


CHANGING = ("compress=bf16", "compress=fp16", "compress=powersgd", "sync=local_sgd")


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("setting", CHANGING)
def test_left_out_alike(bench: Bench, setting: str, processes: int) -> None:
    """A loss that is no number, on one process: left out on all, and the run ends with one set of weights."""
    values = {"values": [1.0] * 12, "nan": [6]}
    settings = (
        "batch.size=4",
        f"accum={4 // processes}",
        "nonfinite=skip",
        "schedule=linear",
        setting,
        *_keys(setting),
    )
    run = bench.run("Scalar", values, *IN_ORDER, f"hardware={processes}cpu", *settings)
    assert run.column("skipped") == [False, True, False]
    assert run.column("lr") == near([0.1, 0.1 * 2 / 3, 0.1 * 2 / 3])
    assert float(run.weights["w"]) == near(1 - 0.1 - 0.1 * 2 / 3)


def _keys(setting: str) -> tuple[str, ...]:
    return {"sync=local_sgd": ("sync.every=2", "sync.start=0"),
            "compress=powersgd": ("compress.rank=2", "compress.start=0")}.get(setting, ())  # fmt: skip


TEXT = (
    "optim=adamw",
    "optim.lr=0.003",
    "optim.clip=1.0",
    "batch.size=16",
    "budget.updates=24",
    "accum=2",
    "hardware=2cpu",
)


def test_named_as_the_cause(bench: Bench) -> None:
    """Where the curves part, the policy is the reason, and only seeds can tell about the outcome; with buckets of another
    size nothing parts."""
    exact = bench.run("Text", {"items": 85}, *TEXT)
    buckets = bench.run("Text", {"items": 85}, *TEXT, "sync.bucket_mb=0.002")
    assert buckets.column("collectives")[2] > exact.column("collectives")[2] == 1
    (verdict,) = compare([str(r.folder.path) for r in (exact, buckets)]).verdicts
    assert verdict.kind in (Kind.equal, Kind.identical)
    for setting in ("compress=powersgd", "sync=local_sgd"):
        run = bench.run("Text", {"items": 85}, *TEXT, setting, *_keys(setting))
        (verdict,) = compare([str(r.folder.path) for r in (exact, run)]).verdicts
        assert setting in verdict.reason
        assert "changes the" in verdict.reason
        assert verdict.unsettled or verdict.kind is Kind.different
        assert any(setting in note for note in run.plan.notes)
