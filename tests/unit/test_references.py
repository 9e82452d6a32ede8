"""Shipped references outlive versions of the program: what was added or taken away since is no difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.compare.read import Run, read_run
from runner.compare.reference import against, keep, read_references
from runner.compare.verdict import Kind
from runner.compose.sources import data_folder
from runner.errors import RecordError
from runner.recipes import keep_reference
from tests.unit.compare_simulation import real


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = read_run(real(tmp_path_factory.mktemp("kept") / "run", "accum=4", "budget.updates=12"))
    assert isinstance(found, Run)
    return found


def kept(run: Run, file: Path, change: object = None) -> Path:
    keep([str(run.folder.path)], file)
    if callable(change):
        content = json.loads(file.read_text())
        change(content["runs"][0])
        file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda e: e["plan"]["config"].pop("compile"),  # added since
        lambda e: e["plan"]["config"]["hardware"].pop("shard"),
        lambda e: e["plan"]["config"].update(gone=1),  # taken away since
        lambda e: e["plan"]["config"]["optim"].pop("weight_decay"),
        lambda e: e["plan"].pop("draws"),
    ],
)
def test_a_reference_of_another_version_is_compared(run: Run, tmp_path: Path, change: object) -> None:
    references = read_references(kept(run, tmp_path / "x.reference.json", change))
    assert against(references, run)[0] is Kind.equal


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda e: e["plan"]["config"].update(seed=7), Kind.incomparable, "seed 7 against 42"),
        (
            lambda e: e["plan"]["config"]["optim"].update(weight_decay=0.5),
            Kind.incomparable,
            "optim.weight_decay 0.5 against ",
        ),
        (lambda e: e["updates"]["loss"].__setitem__(4, 2.0), Kind.different, "from update 5"),
        (lambda e: e["updates"].update(lr={"count": 12, "all": 0.5}), Kind.different, "another learning rate"),
        (lambda e: e["plan"]["config"].update(seed="x"), Kind.incomparable, "cannot be read by this version"),
    ],
)
def test_what_really_differs_is_told(run: Run, tmp_path: Path, change: object, kind: Kind, words: str) -> None:
    """The control of the test above."""
    found = against(read_references(kept(run, tmp_path / "x.reference.json", change)), run)
    assert found[0] is kind
    assert words in found[1]


def test_a_folder_of_runs_is_kept_one_for_each_experiment(run: Run, tmp_path: Path) -> None:
    real(tmp_path / "runs" / "a", "budget.updates=5")
    real(tmp_path / "runs" / "b", "budget.updates=5", "accum=2")
    real(tmp_path / "runs" / "c", "budget.updates=5", "seed=1")
    made = keep([str(tmp_path / "runs")], tmp_path / "x.reference.json")
    assert [r.folder.path.name for r in made] == ["a", "c"]
    assert len(read_references(tmp_path / "x.reference.json")) == 2
    with pytest.raises(RecordError, match="no such file"):
        keep([str(tmp_path / "runs"), str(tmp_path / "gone")], tmp_path / "x.reference.json")


def test_shipped_references_can_be_read_and_are_small() -> None:
    files = sorted(data_folder("recipes").glob("*.reference.json"))
    assert [f.name.partition(".")[0] for f in files] == ["learning_rate_scaling", "observed_batch", "quickstart"]
    for file in files:
        assert all(r.twin is not None and r.made_with for r in read_references(file)), file.name
        assert file.stat().st_size < 100_000


def _recipe_of(run: Run, **changed: object) -> str:
    """A recipe that trains what `run` has trained."""
    values = json.loads(run.plan.config.model_dump_json(by_alias=True))
    same = {k: values[k] for k in ("task", "optim", "schedule", "batch", "budget", "data")}
    choices = [{"override /task": "custom"}, *({f"override /{g}": values[g]["name"]} for g in ("optim", "schedule"))]
    return json.dumps({"defaults": choices, **same, **changed})  # which is YAML


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"seed": "1,42", "accum": "1,2"}}}}, None),
        (
            {"hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"seed": "1,2"}}}},
            "is another experiment than recipe=mine by itself: seed 42 instead of 1",
        ),
        ({"task": {"_target_": "runner.tasks.digits.Digits"}}, "Net instead of runner.tasks.digits.Digits"),
        ({"seed": "x"}, "recipe=mine cannot be composed by itself, so it was not held against it: seed: "),
    ],
)
def test_keep_says_where_a_run_is_not_what_the_recipe_trains(
    changed: dict[str, object],
    words: str | None,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(_recipe_of(run, **changed))
    assert keep_reference([str(run.folder.path), "recipe=mine"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == (words is not None), notes
    assert words is None or words in notes[0]
    assert (tmp_path / "recipes" / "mine.reference.json").exists()
