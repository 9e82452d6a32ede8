"""What tasks rarely do: the same updates all the same, or a clear error before anything is trained on it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.errors import WorkerFailed
from tests.running import Bench, Run, parting

pytestmark = pytest.mark.ranks

SMALL = ("precision=fp64", "batch=auto", "batch.size=16", "batch.per_device=2", "budget.updates=9")
TIGHT = 1e-12


def pair(bench: Bench, task: str, *settings: str, **arguments: Any) -> tuple[Run, Run]:
    """The same experiment on one process and on two."""
    name = f"tests.unusual_tasks.{task}"
    return tuple(bench.run(name, arguments, *SMALL, *settings, f"hardware={h}") for h in ("cpu", "2cpu"))  # type: ignore[return-value]


def optimizer(name: str, *more: str) -> tuple[str, ...]:
    return ("optim=custom", f"optim._target_=tests.unusual_tasks.{name}", "optim.lr=0.1", *more)


@pytest.mark.parametrize("seeding", ["exact", "fast"])
def test_an_optimizer_that_draws_numbers(bench: Bench, seeding: str) -> None:
    one, two = pair(bench, "Plain", *optimizer("Noise"), f"seeding={seeding}")
    if seeding == "exact":
        assert parting(one, two, TIGHT) is None
    assert one.weights.keys() == two.weights.keys(), "weights that differ between processes are not saved"


def test_control_an_optimizer_whose_draws_depend_on_the_rank(bench: Bench) -> None:
    with pytest.raises(WorkerFailed, match="hold different weights"):
        pair(bench, "Plain", *optimizer("RankNoise"))


def test_an_optimizer_that_holds_a_part_of_the_model(bench: Bench) -> None:
    one, two = pair(bench, "Plain", *optimizer("Head"), "optim.clip=1.0")
    assert parting(one, two, TIGHT) is None
    assert one.column("grad_norm") == pytest.approx(two.column("grad_norm"), rel=TIGHT)


@pytest.mark.parametrize("task", ["Complex", "OddBuffers", "OneBuffer", "OneWeight", "Objects"])
def test_the_same_updates(bench: Bench, task: str) -> None:
    one, two = pair(bench, task)
    assert parting(one, two, TIGHT) is None
    assert one.plan.data == two.plan.data
    assert one.plan.notes == ()


def test_control_other_objects_have_another_fingerprint(bench: Bench) -> None:
    one, _ = pair(bench, "Objects")
    other, _ = pair(bench, "Objects", shift=1.0)
    assert one.plan.data != other.plan.data


def test_buffers_that_training_changes_are_named(bench: Bench) -> None:
    """They cannot be the same; that is said, and an evaluation does not disturb them."""
    one, two = pair(bench, "Spectral")
    for run in (one, two):
        assert any("training changes buffers" in note and "_u" in note for note in run.plan.notes)
    assert parting(one, two, TIGHT) is not None
    _, evaluated = pair(bench, "Spectral", "eval.every=1")
    assert parting(two, evaluated, 0.0) is None


@pytest.mark.parametrize(
    ("how", "said"),
    [("zero", "SystemExit"), ("words", "the licence has expired"), ("os._exit", "before training was done")],
)
def test_a_task_that_ends_its_process_has_not_finished(bench: Bench, how: str, said: str) -> None:
    with pytest.raises(WorkerFailed, match=said):
        pair(bench, "Leaves", how=how)


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        ("Reentrant", ("hardware=2cpu",), "use_reentrant=False"),
        ("Freezes", ("hardware=cpu",), "stopped to require a gradient"),
        ("Freezes", ("hardware=2cpu",), "stopped to require a gradient"),
        ("Sparse", ("hardware=cpu",), "sparse gradient"),
        ("Plain", ("optim=custom", "optim._target_=torch.optim.LBFGS"), "needs closure"),
        ("Plain", ("schedule=custom", "schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"), "needs metrics"),
    ],
)
def test_what_cannot_be_done_is_said(bench: Bench, task: str, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(WorkerFailed, match=said):
        bench.run(f"tests.unusual_tasks.{task}", {}, *SMALL, *settings)


@pytest.mark.parametrize(("form", "said"), [("number", "acc"), ("list", "list"), ("taken", "'loss'")])
def test_metrics_of_another_form_are_refused_before_training(bench: Bench, form: str, said: str) -> None:
    with pytest.raises(WorkerFailed, match=f"Metrics.metrics .*{said}") as failed:
        bench.run("tests.unusual_tasks.Metrics", {"form": form}, *SMALL)
    assert failed.value.rank == 0


def test_a_metric_to_stop_by_that_is_not_there_is_refused_before_training(bench: Bench) -> None:
    stop = ("early_stop.metric=acuracy", "eval.every=4")
    with pytest.raises(WorkerFailed, match=r"early_stop\.metric=acuracy: the evaluation has loss, acc"):
        bench.run("tests.unusual_tasks.Metrics", {"form": "good"}, *SMALL, *stop)


@pytest.mark.parametrize("policy", ["every_batch", "backward_only"])
def test_weights_are_exact_where_gradients_are_averaged(bench: Bench, policy: str) -> None:
    """Counts that were divided by three processes and multiplied again would not be counts."""
    settings = ("batch.size=18", "accum=2", f"sync={policy}", "budget.updates=4")
    run = bench.run("tests.unusual_tasks.Plain", {}, *settings, "hardware=3cpu")
    assert run.column("weight") == [18.0, 18.0, 1.0, 18.0]


@pytest.mark.parametrize(("weight", "said"), [("negative", "weight -2 is negative"), ("numpy", None)])
def test_weights_of_other_kinds(bench: Bench, weight: str, said: str | None) -> None:
    if said is None:
        one, two = pair(bench, "Weighted", weight=weight)
        assert parting(one, two, TIGHT) is None
        return
    with pytest.raises(WorkerFailed, match=said):
        pair(bench, "Weighted", weight=weight)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no data", r"train_data\(\) returned None; it must return a map-style dataset"),
        ("no items", "the training data is empty"),
        ("no batch", r"Rubbish\.collate returned None; it must return the batch that loss is given"),
        ("text", r"Rubbish\.loss returned a tuple \(str, int\); it must return the pair"),
        ("names", r"train_data\(\) returned dict, whose items have names"),
        ("None items", r"found <class 'NoneType'> \(while Rubbish\.collate made a batch of the items \["),
        ("nothing to evaluate", r"Rubbish\.eval_data returned no items"),
        ("no method", r"Rubbish\.metrics is None and no method"),
        ("complex", r"Rubbish\.loss returned a tuple \(a complex tensor of shape \(\) with a gradient"),
        ("infinite", r"update 1 is not finite: rank 0 micro-batch 0 \(weight inf\).*; the weight is what the task"),
        ("numpy", r"Rubbish\.loss returned a tuple \(float64, int\); it must return the pair"),
    ],
)
def test_rubbish_is_named_with_the_method_that_gave_it(bench: Bench, how: str, said: str) -> None:
    with pytest.raises(WorkerFailed, match=said):
        bench.run("tests.unusual_tasks.Rubbish", {"how": how}, *SMALL)


def test_a_loss_that_is_cut_off_from_the_model_is_noted(bench: Bench) -> None:
    """On any number of processes; `test_the_same_updates` is the control: sound tasks have no notes."""
    for run in pair(bench, "Rubbish", how="cut off"):
        (note,) = run.plan.notes
        assert "no parameter had a gradient in the first update: what Rubbish.loss returns" in note
