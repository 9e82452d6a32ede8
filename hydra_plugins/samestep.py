"""Launchers of Hydra's for whole sweeps; Hydra takes launchers from this package only. They are put in by the command, not
chosen by users. The task function that they are given is `runner.compose.app.Entry`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write


class Together(Launcher):
    """Composes all jobs of a sweep first and hands them over at once: `launch=slurm` makes arrays of them. The task function
    collects a job when it is called, and runs all that it has in `together()`."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        Path(str(self._config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        collector: Any = self._task
        returns = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            returns.append(
                run_job(
                    hydra_context=self._context,
                    task_function=collector.collect,
                    config=config,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                )
            )
            _ = returns[-1].return_value  # raises what went wrong in collecting
        for job, value in zip(returns, collector.together(), strict=True):
            job.return_value = value
        return returns


class Heard(Launcher):
    """Another launcher, whose jobs run in processes of their own: the task function hears of every job that it was handed
    how it came back, if it did. Nobody else could tell of one that had no folder to write to."""

    def __init__(self, launcher: DictConfig):
        self._chosen = launcher

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from runner.compose import sweeps

        self._task: Any = task_function
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.launcher = self._chosen
        sweeps.start_ray(config)
        self._launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from runner.compose import sweeps

        jobs = dict(enumerate(job_overrides, initial_job_idx))
        try:
            returns = self._launcher.launch(job_overrides, initial_job_idx)
        except BaseException as error:
            sweeps.stop_ray()  # jobs that still wait there must not start any more
            if isinstance(error, Exception):
                self._task.came_back(jobs, ())
            raise
        self._task.came_back(jobs, returns)
        return returns
