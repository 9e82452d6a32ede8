"""What a command line would start: one run, or the jobs of the sweep that its recipe asks for. Nothing is checked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from runner.compose.arguments import CommandLine
from runner.compose.loading import loader, plan_of, sweep_of, values_of
from runner.compose.overrides import prepare
from runner.compose.sources import install
from runner.compose.sweeps import BASIC_SWEEPER, jobs_of
from runner.errors import ConfigError
from runner.plan import Plan

NOT_COMPOSED = (ConfigError, HydraException, OmegaConfBaseException, ValueError)  # what composing may raise


@dataclass(frozen=True, slots=True)
class Sweep:
    """The overrides of each job, and the keys that the recipe sweeps. `searched`: another sweeper than Hydra's own draws from
    a space, of which the jobs are the corners."""

    jobs: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...]
    searched: bool


def recipe_sweep(line: CommandLine) -> Sweep | None:
    """The sweep of the chosen recipe; None where it is a single run."""
    install(line.config_folders)
    with loader(line.config_folders) as using:
        swept, sweeper = sweep_of(line.overrides, using)
        if swept is None:
            return None
        jobs = jobs_of(prepare(line.overrides), swept, sweeper, using)
        return Sweep(tuple(map(tuple, jobs)), tuple(swept), sweeper != BASIC_SWEEPER)


def plans_of(line: CommandLine, sweep: Sweep | None) -> Iterator[Plan]:
    """The plan of every job, composed when it is asked for. Raises ConfigError, or an error of Hydra."""
    install(line.config_folders)
    with loader(line.config_folders) as using:
        for job in sweep.jobs if sweep is not None else [line.overrides]:
            yield plan_of(values_of(job, using))
