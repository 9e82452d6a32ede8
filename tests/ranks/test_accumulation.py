"""Accumulation and weighting: cases A1 to A11 of losses whose right values can be worked out by hand, each beside a
fault that the same check must catch. Plain SGD throughout: Adam would hide a constant factor of the gradient."""

from __future__ import annotations

import pytest

from runner.schedule import decay
from runner.schema import Decay
from tests.running import Bench, Run

pytestmark = pytest.mark.ranks

POLICIES = ("accumulate", "no_sync", "every_batch", "backward_only")
IN_ORDER = ("data.shuffle=false", "optim.lr=0.1")
TOKENS = [6, [2, 2, 2]]


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-6)


def cpus(processes: int) -> str:
    return "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"


def weight_after(run: Run) -> float:
    return float(run.weights["w"])


# A1, A10, A5: tokens, not items and not micro-batches, are what a window's loss is averaged over

SPLITS = [(1, 2, "accumulate")] + [(2, 1, policy) for policy in POLICIES]


@pytest.mark.parametrize("pad", [1, 5])
@pytest.mark.parametrize(("processes", "accum", "policy"), SPLITS)
def test_window_is_averaged_over_its_tokens(bench: Bench, processes: int, accum: int, policy: str, pad: int) -> None:
    """A1, A10: the micro-batches [6] and [2, 2, 2] give the gradient (6 + 6) / 4, however many ignored tokens fill them up."""
    settings = (*IN_ORDER, "batch.size=2", f"accum={accum}", cpus(processes), f"sync={policy}")
    run = bench.run("Scalar", {"values": TOKENS, "pad": pad}, *settings)
    assert weight_after(run) == near(0.7)
    assert run.column("loss") == near([3.0]), "one row for the update, whatever the processes"
    assert run.column("weight") == [4.0]
    assert run.column("loss", "batches") == near([6.0, 2.0])
    assert run.column("weight", "batches") == [1.0, 3.0]


@pytest.mark.parametrize("wrong", [{"weigh": "items"}, {"mean": True}, {"fault": "mean_of_means"}])
@pytest.mark.parametrize(("processes", "accum"), [(1, 2), (2, 1)])
def test_other_averages_are_seen(bench: Bench, processes: int, accum: int, wrong: dict[str, object]) -> None:
    """The control of A1 and A10: averaged over items, or given as means, the same window does not give 3.0."""
    settings = (*IN_ORDER, "batch.size=2", f"accum={accum}", cpus(processes))
    run = bench.run("Scalar", {"values": TOKENS, **wrong}, *settings)
    assert weight_after(run) != near(0.7)
    assert run.column("loss") != near([3.0])


@pytest.mark.parametrize("weigh", ["tokens", "number"])
@pytest.mark.parametrize("policy", POLICIES)
def test_uneven_split_over_processes(bench: Bench, policy: str, weigh: str) -> None:
    """A5: 3 tokens on one process and 2 on the other: (3 + 12) / 5, whether the weight is a tensor or a number."""
    settings = (*IN_ORDER, "batch.size=2", "hardware=2cpu", f"sync={policy}")
    run = bench.run("Scalar", {"values": [[1, 1, 1], [6, 6]], "weigh": weigh}, *settings)
    assert (weight_after(run), run.column("loss")) == (near(0.7), near([3.0]))


def test_uneven_split_control(bench: Bench) -> None:
    """The control of A5: the average of the processes' averages is 3.5."""
    settings = (*IN_ORDER, "batch.size=2", "hardware=2cpu")
    run = bench.run("Scalar", {"values": [[1, 1, 1], [6, 6]], "fault": "mean_of_means"}, *settings)
    assert weight_after(run) == near(0.65)


# A2, A3: micro-batches of one window do not act like updates, nor are their losses scaled


def test_gradient_is_not_multiplied_by_accum(bench: Bench) -> None:
    """A2: the values 1, 2, 3, 4 in one window are one step by their mean."""
    run = bench.run("Scalar", {"values": [1, 2, 3, 4]}, *IN_ORDER, "batch.size=4", "accum=4")
    assert weight_after(run) == near(0.75)


def test_gradient_control(bench: Bench) -> None:
    """The control of A2: means in place of sums with the right weights would be wrong where an item has two tokens;
    with accum 1 in place of 4 there are four steps."""
    run = bench.run("Scalar", {"values": [1, 2, 3, 4]}, *IN_ORDER, "batch.size=1", "accum=1")
    assert weight_after(run) != near(0.75)
    assert len(run.updates) == 4


def test_logged_losses(bench: Bench) -> None:
    """A3: micro-batches log their own mean under the weights of their window, updates the mean of the window."""
    run = bench.run("Scalar", {"values": [1, 2, 3, 4, 10]}, *IN_ORDER, "batch.size=2", "accum=2")
    assert run.column("loss", "batches") == near([1, 2, 2.55, 3.4, 5.0])
    assert run.column("loss") == near([1.5, 2.975, 5.0])
    assert run.column("items") == [2, 2, 1], "the short last window is averaged over what it has"


@pytest.mark.parametrize("fault", ["lost_tail", "mean_of_means"])
def test_logged_losses_control(bench: Bench, fault: str) -> None:
    """The control of A3, with micro-batches of two: 10 stands alone in the last one."""
    settings = (*IN_ORDER, "batch.size=4", "accum=2")
    right = bench.run("Scalar", {"values": [1, 2, 3, 4, 10, 20, 30]}, *settings)
    assert right.column("loss") == near([2.5, 0.75 * 20])
    wrong = bench.run("Scalar", {"values": [1, 2, 3, 4, 10, 20, 30], "fault": fault}, *settings)
    assert wrong.column("loss") != near([2.5, 0.75 * 20])


# A4: any split of the same window is the same update

FOUR_WAYS = [(1, 1, 8), (2, 1, 8), (1, 2, 8), (2, 2, 8), (4, 1, 8), (4, 2, 8), (8, 1, 8)]


@pytest.mark.parametrize(("processes", "accum", "size"), FOUR_WAYS)
def test_splits_of_a_window_agree(bench: Bench, processes: int, accum: int, size: int) -> None:
    """A4: v = 0..15 in two windows of eight, however they are split."""
    settings = (*IN_ORDER, f"batch.size={size}", f"accum={accum}", cpus(processes))
    run = bench.run("Scalar", {"values": list(range(16))}, *settings)
    assert run.column("loss") == near([3.5, 7.475])
    assert weight_after(run) == near(-0.5)


def test_splits_control(bench: Bench) -> None:
    """The control of A4: without a reduction, rank 0 sees its own half only."""
    settings = (*IN_ORDER, "batch.size=8", "hardware=2cpu")
    run = bench.run("Scalar", {"values": list(range(16)), "fault": "no_reduction"}, *settings)
    assert run.column("loss") != near([3.5, 7.475])
    assert weight_after(run) != near(-0.5)


# A6: one update under every policy, and what it sends


@pytest.mark.parametrize(("policy", "reductions"), [*zip(POLICIES, (1, 1, 4, 4), strict=True)])
def test_policies_differ_in_reductions_only(bench: Bench, policy: str, reductions: int) -> None:
    """A6: rank 0 sees 1..4, rank 1 sees 11..14."""
    values = [1, 2, 3, 4, 11, 12, 13, 14]
    settings = (*IN_ORDER, "batch.size=8", "accum=4", "hardware=2cpu", f"sync={policy}")
    run = bench.run("Scalar", {"values": values, "watch": True}, *settings)
    assert weight_after(run) == near(1 - 0.1 * 7.5)
    assert run.column("loss") == near([7.5])
    assert run.column("loss", "batches") == near(values)
    assert run.column("collectives") == [reductions]
    assert [row["all_reduces"] for row in run.watched(1)] == [reductions]
    assert run.plan.comm.collectives == reductions
    last_only = [False, False, False, True] * 2
    assert run.column("synced", "batches") == (last_only if reductions == 1 else [True] * 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_control(bench: Bench, policy: str) -> None:
    """The control of A6, under each policy: unsummed gradients are another update."""
    values = [1, 2, 3, 4, 11, 12, 13, 14]
    settings = (*IN_ORDER, "batch.size=8", "accum=4", "hardware=2cpu", f"sync={policy}")
    run = bench.run("Scalar", {"values": values, "fault": "no_reduction"}, *settings)
    assert weight_after(run) != near(1 - 0.1 * 7.5)
    assert run.column("collectives") == [0]


# A7: clipping sees the window's gradient, not a micro-batch's or a process's


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("processes", "accum"), [(1, 1), (1, 2), (2, 1)])
def test_clipping(bench: Bench, processes: int, accum: int, policy: str) -> None:
    """A7: the mean of (3, 0) and (0, 4) has the norm 2.5 and is clipped to 1."""
    settings = ("data.shuffle=false", "optim.lr=1", "optim.clip=1.0", "batch.size=2", f"accum={accum}")
    run = bench.run("Vector", {"values": [[3, 0], [0, 4]]}, *settings, cpus(processes), f"sync={policy}")
    assert run.column("grad_norm") == near([2.5])
    assert run.weights["w"].tolist() == near([-0.6, -0.8])


@pytest.mark.parametrize("lr", [1, 0.5])
def test_gradient_below_the_limit_is_left_alone(bench: Bench, lr: float) -> None:
    settings = ("data.shuffle=false", f"optim.lr={lr}", "optim.clip=3.0", "batch.size=2")
    run = bench.run("Vector", {"values": [[3, 0], [0, 4]]}, *settings)
    assert run.weights["w"].tolist() == near([-1.5 * lr, -2.0 * lr])


@pytest.mark.parametrize("fault", ["no_reduction", "mean_of_means"])
def test_clipping_control(bench: Bench, fault: str) -> None:
    """The control of A7: with three items on two processes, a process's own gradient and a mean of means have other norms."""
    settings = ("data.shuffle=false", "optim.lr=1", "optim.clip=1.0", "batch.size=4", "hardware=2cpu")
    values = [[3, 0], [3, 0], [0, 4]]
    assert bench.run("Vector", {"values": values}, *settings).column("grad_norm") == near([(36 + 16) ** 0.5 / 3])
    wrong = bench.run("Vector", {"values": values, "fault": fault}, *settings)
    assert wrong.column("grad_norm") != near([(36 + 16) ** 0.5 / 3])


# A8, A9: schedules count updates

SETUPS = [(p, a) for p in (1, 2, 4) for a in (1, 4)]


@pytest.mark.parametrize(("processes", "accum"), SETUPS)
def test_linear_schedule(bench: Bench, processes: int, accum: int) -> None:
    """A8: 1.0, 0.9 ... 0.1 over ten updates, so w falls by 5.5."""
    size = processes * accum
    settings = ("schedule=linear", "optim.lr=1.0", f"batch.size={size}", f"accum={accum}", cpus(processes))
    run = bench.run("Scalar", {"values": [1] * 10 * size}, *settings)
    assert run.column("lr") == near([1.0 - 0.1 * n for n in range(10)])
    assert weight_after(run) == near(1 - 5.5)


def test_linear_schedule_control(bench: Bench) -> None:
    """The control of A8: a schedule that advances once for every process."""
    settings = ("schedule=linear", "optim.lr=1.0", "batch.size=2", "hardware=2cpu")
    run = bench.run("Scalar", {"values": [1] * 20, "fault": "schedule_by_process"}, *settings)
    assert run.column("lr") != near([1.0 - 0.1 * n for n in range(10)])
    assert weight_after(run) != near(1 - 5.5)


A9 = ("schedule=linear", "optim.lr=1.0", "batch.size=24", "budget.epochs=2")


@pytest.mark.parametrize(("processes", "accum"), [(2, 3), (1, 6), (1, 1)])
def test_short_window_is_an_update(bench: Bench, processes: int, accum: int) -> None:
    """A9: 50 items in windows of 24 are three updates an epoch; the rate is 0 after the sixth."""
    arguments = {"values": list(range(50)), "watch": True}
    run = bench.run("Scalar", arguments, *A9, f"accum={accum}", cpus(processes))
    assert run.column("epoch") == [1, 1, 1, 2, 2, 2]
    assert run.column("weight") == [24, 24, 2] * 2
    assert run.column("lr") == near([1 - n / 6 for n in range(6)])
    assert [row["lr"] for row in run.watched(processes - 1)][-1] == 0.0


@pytest.mark.parametrize("wrong", ["lost_tail", "schedule_by_process"])
def test_short_window_control(bench: Bench, wrong: str) -> None:
    """The control of A9: the last two items are lost, or the rate is used up after three updates."""
    arguments = {"values": list(range(50)), "watch": True, "fault": wrong}
    run = bench.run("Scalar", arguments, *A9, "accum=3", "hardware=2cpu")
    assert (run.column("weight"), run.column("lr")) != ([24, 24, 2] * 2, near([1 - n / 6 for n in range(6)]))


def test_linear_decay_ends_at_zero() -> None:
    factor = decay(Decay(name="linear", warmup=0, end=0.0), 6)
    assert [factor(n) for n in (0, 3, 6)] == [1.0, 0.5, 0.0]


# A11: means over an epoch are weighted


EPOCH_MEAN = [1, 1, 1, 1, 6]


@pytest.mark.parametrize("processes", [1, 2])
def test_epoch_mean(bench: Bench, processes: int) -> None:
    """A11: four items at 1.0 and one at 6.0, in batches of four: 2.0, not 3.5; in an evaluation and in a window."""
    settings = (*IN_ORDER, f"batch.size={4 * processes}", cpus(processes))
    run = bench.run("Scalar", {"values": [0] * 8, "evaluated": EPOCH_MEAN}, *settings)
    assert (run.evals[-1]["loss"], run.evals[-1]["weight"]) == (near(2.0), 5.0)
    run = bench.run("Scalar", {"values": EPOCH_MEAN}, *IN_ORDER, "batch.size=8", "accum=2")
    assert (run.updates[-1]["loss"], run.updates[-1]["weight"]) == (near(2.0), 5.0)


@pytest.mark.parametrize(
    ("processes", "fault"), [(1, "mean_of_means"), (2, "mean_of_means"), (2, "eval_mean_of_ranks")]
)
def test_epoch_mean_control(bench: Bench, processes: int, fault: str) -> None:
    """The control of A11: batches or processes averaged by themselves give 3.5."""
    settings = (*IN_ORDER, f"batch.size={4 * processes}", cpus(processes))
    run = bench.run("Scalar", {"values": [0] * 8, "evaluated": EPOCH_MEAN, "fault": fault}, *settings)
    assert run.evals[-1]["loss"] == near(3.5)
