"""Is the package of the chosen tracker installed? Answered before anything starts, and without importing it."""

from __future__ import annotations

import importlib.util

from runner.errors import ConfigError, Problem
from runner.plan import Plan

_PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}  # tracker: the package that it needs


def check_tracker(plan: Plan) -> None:
    """Raises ConfigError if the tracker's package is missing."""
    name = plan.config.tracker.name
    package = _PACKAGES.get(name)
    if package is None or is_off(plan) or _installed(package):
        return
    what = f"the package {package} is not installed"
    raise ConfigError([Problem(f"tracker={name}", what, f'Install it: pip install "samestep[{name}]"')])


def is_off(plan: Plan) -> bool:
    """Whether the chosen tracker is to do nothing, `tracker.mode=disabled`."""
    tracker = plan.config.tracker
    return tracker.name == "wandb" and tracker.mode.value == "disabled"


def _installed(package: str) -> bool:
    """A folder of that name, such as the `wandb/` that wandb leaves behind, is no package."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
