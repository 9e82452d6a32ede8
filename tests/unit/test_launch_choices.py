"""What is said before a sweep by another launcher or sweeper starts: plugins that are missing, spaces that cannot be run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.compose import app
from runner.compose.arguments import parse
from runner.compose.sweeps import missing_plugin
from runner.errors import ConfigError

optuna = pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs samestep[optuna]")
SEARCH = ["hydra/sweeper=optuna", "-m"]


def problems(*arguments: str) -> list[str]:
    """The lines that a command line is answered with; [] if it may start."""
    try:
        app.check(parse(arguments), lambda _: None)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def plugin(key: str, choice: str, *installed: str) -> str | None:
    override: Any = OverridesParser.create().parse_override(f"{key}={choice}")
    found = missing_plugin(
        key, override, cast(ConfigLoader, SimpleNamespace(get_group_options=lambda *_: list(installed)))
    )
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("key", "choice", "extra"),
    [
        ("hydra/launcher", "joblib", "joblib"),
        ("hydra/launcher", "ray", "ray"),
        ("hydra/launcher", "submitit_slurm", "submitit"),
        ("hydra/sweeper", "optuna", "optuna"),
    ],
)
def test_a_plugin_that_is_not_installed_is_one_line_with_the_command(key: str, choice: str, extra: str) -> None:
    assert (
        plugin(key, choice, "basic")
        == f"{key}: '{choice}' is not installed. Install it: pip install \"samestep[{extra}]\""
    )
    assert plugin(key, choice, "basic", choice) is None


def test_a_launcher_that_does_not_exist_is_answered_with_those_that_do() -> None:
    (line,) = problems("-m", "seed=0,1", "hydra/launcher=jobslib")
    assert "'jobslib'" in line
    assert "basic, joblib, ray" in line


def test_a_space_needs_somebody_who_searches_it() -> None:
    lines = problems("-m", "optim.lr=interval(0.001,0.1)", "seed=interval(1,3)")
    assert [line.partition(":")[0] for line in lines] == ["optim.lr", "seed"]
    assert all("hydra/sweeper=optuna" in line for line in lines)


def test_the_corners_of_a_space_are_checked_and_all_told_at_once() -> None:
    lines = problems("optim.lr=interval(-1,0.1)", "accum=choice(1,3,0)", "batch.size=64", *SEARCH)
    assert {line.partition(":")[0] for line in lines} == {"optim.lr", "accum", "batch.size"}
    assert problems("optim.lr=interval(0.001,0.1)", "accum=choice(1,2)", "seed=range(1,9)", *SEARCH) == []


def test_a_wide_space_is_checked_key_by_key() -> None:
    wide = ["seed=range(1,1000)", "budget.updates=range(1,1000)"]
    lines = problems(*wide, "accum=choice(1,2,5)", *SEARCH)
    assert [line.partition(":")[0] for line in lines] == ["batch.size"]


def test_a_group_cannot_be_an_interval() -> None:
    (line,) = problems("optim=interval(0,1)", *SEARCH)
    assert line.startswith("optim: is a group")


def test_what_a_launcher_cannot_run() -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs samestep[joblib]")
    for more in (["launch=slurm"], ["hardware=2node", "rendezvous=127.0.0.1:29400"]):
        lines = problems("-m", "seed=0,1", "hydra/launcher=joblib", *more)
        assert [line.partition(":")[0] for line in lines] == ["hydra/launcher"]
        assert problems("-m", "seed=0,1", *more) == []


def test_launch_is_checked_like_any_group() -> None:
    lines = problems("launch=slurm", "launch.time=-1", "launch.patition=x")
    assert sorted(line.partition(":")[0] for line in lines) == ["launch.patition", "launch.time"]
    assert problems("launch=slurm", "launch.extra.nice=100", "hardware=2node") == []
    assert problems("launch=slurm", "hardware=2node", "rendezvous=127.0.0.1:29400")[0].startswith("rendezvous:")
