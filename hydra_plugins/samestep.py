"""A launcher of Hydra's that composes all jobs of a sweep first and hands them over at once: `launch=slurm` makes arrays of
them. It is chosen by the configuration, not by users. Hydra takes launchers from this package only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class Together(Launcher):
    """The task function collects a job when it is called, and runs all that it has in `together()`."""

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
