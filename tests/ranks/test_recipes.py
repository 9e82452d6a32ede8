"""Recipes from everywhere they may come from, and the verdict against a kept reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

TINY = """# @package _global_
# A tiny run.
budget:
  updates: 12
task:
  dropout: 0.1
hardware:
  threads: 1
"""


def runner(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_recipes_come_from_everywhere(tmp_path: Path) -> None:
    for folder in ("team", "here/recipes", "given/recipe"):
        (tmp_path / folder).mkdir(parents=True)
        name = Path(folder).parts[0]
        (tmp_path / folder / f"of_{name}.yaml").write_text(TINY.replace("tiny", name))
    package = tmp_path / "site" / "team_package" / "recipes"
    package.mkdir(parents=True)
    for init in (package, package.parent):
        (init / "__init__.py").write_text("")
    (package / "of_package.yaml").write_text(TINY)
    info = tmp_path / "site" / "team_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[samestep.recipes]\nteam = team_package.recipes\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    environment = {"RUNNER_RECIPES": str(tmp_path / "team"), "PYTHONPATH": path}
    given = ("--config-dir", str(tmp_path / "given"))
    listed = runner(tmp_path / "here", "recipes", "--json", *given, **environment)
    found = {r["name"]: r for r in json.loads(listed.stdout)}
    assert found["of_team"]["from"] == "RUNNER_RECIPES"
    assert found["of_here"]["from"] == "working folder"
    assert found["of_given"]["from"] == "--config-dir"
    assert found["of_package"]["from"] == "package team_package.recipes"
    assert found["of_team"]["about"] == "A team run."
    assert "quickstart" in found
    for name in ("of_team", "of_here", "of_given", "of_package"):
        flags = given if name == "of_given" else ()
        done = runner(tmp_path / "here", "plan", "--json", *flags, f"recipe={name}", **environment)
        assert json.loads(done.stdout)["arithmetic"]["updates"] == 12, done.stderr
        done = runner(tmp_path / "here", "plan", "--json", *flags, f"recipe={name}", "budget.updates=7", **environment)
        assert json.loads(done.stdout)["arithmetic"]["updates"] == 7  # the command line wins


def test_every_shipped_recipe_has_a_doc_line_and_no_code() -> None:
    from runner.recipes import recipes

    shipped = [r for r in recipes() if r.provider == "samestep"]
    assert {r.name for r in shipped} >= {
        "gradient_sync", "observed_batch", "learning_rate_scaling", "precision_and_accumulation", "quickstart",
    }  # fmt: skip
    for recipe in shipped:
        assert recipe.about.endswith("."), recipe.name
        assert not list(recipe.file.parent.glob("*.py"))


@pytest.mark.slow
def test_a_recipe_ends_with_the_verdict_against_its_reference(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").write_text(TINY)
    done = runner(tmp_path, "recipe=tiny", "hydra.run.dir=outputs/first")
    assert done.returncode == 0, done.stderr
    assert "against the reference" not in done.stdout
    done = runner(tmp_path, "keep", "outputs/first", "recipe=tiny")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "recipes" / "tiny.reference.json"
    assert file.stat().st_size < 20_000
    auto = ("batch=auto", "batch.per_device=32", "hardware=2cpu")
    verdicts = {
        "again": ((), "equal: ", 0),
        "seed": (("seed=1",), "not comparable: seed 42 against 1", 0),
        "draws": (auto, "not comparable: the curves differ from update 1 on by design", 0),
    }
    for name, (overrides, words, code) in verdicts.items():
        done = runner(tmp_path, "recipe=tiny", *overrides, f"hydra.run.dir=outputs/{name}")
        assert f"{name} against the reference of recipe=tiny: {words}" in done.stdout, done.stdout + done.stderr
        assert done.returncode == code
    kept = json.loads(file.read_text())  # the control: a reference that the run must not agree with
    kept["runs"][0]["updates"]["loss"][6] *= 1.001
    kept["runs"][0]["made_with"] = "torch 1.0 on abacus"
    file.write_text(json.dumps(kept))
    done = runner(tmp_path, "recipe=tiny", "-m", "accum=1,2", "seed=42,1", "hydra.sweep.dir=outputs/wrong")
    assert done.returncode == 1, "the reference counts, the sweep's jobs among each other do not"
    assert "0 against the reference of recipe=tiny: different: from update 7:" in done.stdout
    assert "(the reference was made with torch 1.0 on abacus, this with torch" in done.stdout
    assert "1 against the reference of recipe=tiny: not comparable: seed 42 against 1" in done.stdout
    file.write_text('{"version": 99}')
    done = runner(tmp_path, "recipe=tiny", "hydra.run.dir=outputs/newer")
    assert done.returncode == 2
    assert "is a reference of version 99; this is version 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("keep",), "needs a run (or a folder of runs) and a recipe"),
        (("keep", "outputs/none", "recipe=quickstart"), "outputs/none: there is no such file or folder"),
        (("keep", "outputs/none", "recipe=quickstrat"), "there is no recipe 'quickstrat'"),
        (("recipes", "--colour"), "--colour: is not a flag of recipes"),
    ],
)
def test_wrong_requests_are_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = runner(tmp_path, *arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
