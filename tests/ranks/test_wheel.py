"""What is installed is complete: the wheel alone, far from the checkout, composes, plans and trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.commands import PROJECT, files, rows, runner

pytestmark = pytest.mark.ranks

BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel and nothing else."""
    pytest.importorskip("hatchling", reason="building the wheel needs hatchling: pip install hatchling")
    built, site = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(built)], cwd=PROJECT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("samestep-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    folder.mkdir()
    return folder


def test_every_configuration_and_recipe_is_in_the_wheel(site: Path) -> None:
    for name in ("conf", "recipes"):
        here = {f for f in files(PROJECT / name) if f.endswith(".yaml")}
        assert here and {f for f in files(site / "runner" / name) if f.endswith(".yaml")} == here
    assert not (site / "tests").exists() and not (site / "outputs").exists()
    (entry_points,) = site.glob("samestep-*.dist-info/entry_points.txt")
    assert "samestep = runner.__main__:main" in entry_points.read_text()


def test_the_wheel_composes_from_its_own_files(site: Path, start: Path) -> None:
    shown = runner(start, "--info", "searchpath", path=[site]).expect(0).out
    assert str(site / "runner" / "conf") in shown and str(site / "runner" / "recipes") in shown
    assert str(PROJECT / "conf") not in shown
    typed = ["plan", "recipe=quickstart", "hardware=3cpu", "batch.size=66", "--json"]
    plan = json.loads(runner(start, *typed, path=[site]).expect(0).out)
    assert plan["arithmetic"]["processes"] == 3
    assert plan["config"]["budget"]["epochs"] == 1
    assert runner(start, "--version", path=[site]).out.startswith("samestep 0")


def test_the_wheel_trains(site: Path, start: Path) -> None:
    done = runner(start, "recipe=quickstart", "hardware=2cpu", "budget.updates=2", path=[site]).expect(0)
    assert [r["update"] for r in rows(done.run() / "updates.jsonl")] == [1, 2]


def test_a_wheel_without_its_configurations_is_found_out(site: Path, start: Path, tmp_path: Path) -> None:
    """The control of the tests above."""
    bare = tmp_path / "bare"
    shutil.copytree(site, bare)
    shutil.rmtree(bare / "runner" / "conf")
    done = runner(start, "plan", path=[bare])
    assert done.code != 0
    assert "conf/ is missing" in done.err
