"""Sweeps by other launchers and sweepers than Hydra's own: what they need to be told, and what they can be asked.

Hydra keeps a sweep's folder to itself, and a launcher may run the jobs in processes of its own. A callback, a public
plugin of Hydra's, tells the command where its jobs will be before the first of them starts.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.counts import counted
from runner.errors import ConfigError, Problem, RunnerError
from runner.plan import Plan

# A sweep's folder, whether its jobs run in processes of their own, and how a job's folder in it is called (not resolved).
SweepAnnounced = Callable[[Path, bool, str], None]

_BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
TOGETHER = "samestep_together"  # the launcher of launch=slurm
_OURS = "hydra_plugins.samestep"
_TOGETHER = f"{_OURS}.Together"
_HEARD = f"{_OURS}.Heard"
_RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"
_FULL = "HYDRA_FULL_ERROR"
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_EXTRAS = {  # of this package, by the choice that needs it
    ("hydra/launcher", "joblib"): "joblib",
    ("hydra/launcher", "ray"): "ray",
    ("hydra/launcher", "ray_aws"): "ray",
    ("hydra/launcher", "submitit_local"): "submitit",
    ("hydra/launcher", "submitit_slurm"): "submitit",
    ("hydra/sweeper", "optuna"): "optuna",
}
_MOST = 64  # jobs of a space that are checked in every combination
_ALONG = 12  # values of one key that are checked where there are more combinations
_listeners: list[SweepAnnounced] = []


class Announce(Callback):
    """Tells who listens that a sweep starts. Hydra would only warn of what is raised here."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        target, folder = config.hydra.launcher._target_, Path(config.hydra.sweep.dir).absolute()
        named = str(OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"])  # type: ignore[call-overload,index]
        with read_write(config.hydra), open_dict(config.hydra):
            # Hydra makes a job's folder before the job can say anything, and a sweep ends where that fails: let it find one
            config.hydra.overrides.hydra.append("hydra.sweep.subdir=.")
            if target == _RAY:
                config.hydra.launcher.ray.remote.setdefault("max_retries", 0)
            if target not in (_BASIC, _TOGETHER):
                config.hydra.launcher = {"_target_": _HEARD, "_recursive_": False, "launcher": config.hydra.launcher}
        for listener in _listeners:
            listener(folder, target != _BASIC, named)


def offer_together() -> None:
    """Make the launcher that collects a sweep's jobs a choice."""
    node = {"_target_": _TOGETHER}
    ConfigStore.instance().store(group="hydra/launcher", name=TOGETHER, node=node, provider="samestep")


def start_ray(config: DictConfig) -> None:
    """Ray, where it is the launcher, as that would start it, but that a signal stays ours to handle, and that what jobs print
    is not shown twice."""
    if config.hydra.launcher._target_ != _RAY:
        return
    import ray

    settings: dict[str, Any] = OmegaConf.to_container(config.hydra.launcher.ray.init, resolve=True)  # type: ignore[assignment]
    quiet = {"log_to_driver": False, "include_dashboard": False, "logging_level": "error"}
    settings["address"] = (
        settings.get("address") or os.environ.get("RAY_ADDRESS") or "local"
    )  # Ray would take any that it finds
    room = (
        {"object_store_memory": 75 * 2**20} if settings["address"] == "local" else {}
    )  # else it is not ours to choose
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        if not ray.is_initialized():
            ray.init(**{**room, **quiet, **settings})
    except Exception as error:
        raise RunnerError(f"Ray cannot be started or reached: {' '.join(str(error).split())}") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stop_ray() -> None:
    """Leave Ray, where it was started; of a cluster, end what this command has there."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()


ANNOUNCE = f"++hydra.callbacks.samestep._target_={__name__}.{Announce.__name__}"


@contextmanager
def announcing(listener: SweepAnnounced) -> Iterator[None]:
    """While Hydra runs, `listener` is told of a sweep."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def plugin_errors() -> Iterator[None]:
    """While Hydra runs, it raises what happens instead of printing it and ending the process; what goes wrong inside of a
    launcher or a sweeper becomes one line."""
    wanted = os.environ.get(_FULL)
    os.environ[_FULL] = "1"
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        plugin = next((n for n in names if n.startswith("hydra_plugins.") and n != _OURS), None)
        if plugin is None or wanted is not None:
            raise
        what = (
            f"{plugin.split('.')[1].removeprefix('hydra_').replace('_', ' ')} gave up: {type(error).__name__}: {error}"
        )
        raise RunnerError(" ".join(what.split())) from None
    finally:
        os.environ.pop(_FULL)
        if wanted is not None:
            os.environ[_FULL] = wanted


def best_of(sweep: Path) -> str | None:
    """What Optuna found in a sweep, in one line; None where it did not search."""
    file = sweep / "optimization_results.yaml"
    if not file.exists():
        return None
    found = OmegaConf.load(file)
    if "best_params" not in found:
        return f"{counted(len(found.solutions), 'solution')}, of which none is worse in all: {file}"
    named = " ".join(f"{str(k).lstrip('+')}={v}" for k, v in found.best_params.items())
    return f"best: {named}: {found.best_value:.4f}"


def launcher_problem(plan: Plan) -> Problem | None:
    """What keeps jobs of this plan from being run by another launcher than Hydra's own."""
    if plan.config.launch.name == "slurm":
        what = "launch=slurm submits the jobs of a sweep itself"
        return Problem("hydra/launcher", what, "Leave hydra/launcher out, or use launch=local")
    if plan.config.hardware.nodes > 1 and not plan.config.link.chosen:
        what = (
            f"jobs of {plan.config.hardware.nodes} nodes cannot be run in a process that a launcher has put somewhere"
        )
        return Problem(
            "hydra/launcher", what, "Leave hydra/launcher out; under Slurm launch=slurm runs them side by side"
        )
    return None


def missing_plugin(key: str, override: Override, loader: ConfigLoader) -> Problem | None:
    """The problem of a launcher or sweeper that is not installed, or does not exist."""
    if key not in ("hydra/launcher", "hydra/sweeper") or override.is_delete() or override.is_sweep_override():
        return None
    chosen, here = str(override.value()), loader.get_group_options(key, ObjectType.CONFIG)
    if chosen in here:
        return None
    if extra := _EXTRAS.get((key, chosen)):
        return Problem(key, f"'{chosen}' is not installed", f'Install it: pip install "samestep[{extra}]"')
    known = sorted({*here, *(name for group, name in _EXTRAS if group == key)})
    return Problem(key, f"'{chosen}' is not one of its choices", f"The choices are: {', '.join(known)}")


def jobs_of(overrides: Sequence[str], swept: dict[str, Any], sweeper: str, loader: ConfigLoader) -> list[list[str]]:
    """The overrides of the jobs of a sweep, without Hydra's own: those that the basic sweeper will make, or, of a space
    that another `sweeper` searches, its corners. `swept` are the parameters that a recipe sweeps."""
    texts = [*(f"{k}={v}" for k, v in swept.items()), *as_swept(overrides, swept)]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(texts)
    parsed = [p for p in parsed if p.key_or_group.partition(".")[0].partition("/")[0] != "hydra"]
    if sweeper != BASIC_SWEEPER:
        return _corners(parsed)
    searched = [p for p in parsed if p.is_interval_sweep()]
    if searched:
        raise ConfigError(map(_not_listed, searched))
    jobs: list[list[str]] = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    return jobs


def as_swept(overrides: Sequence[str], swept: Iterable[str]) -> list[str]:
    """The overrides, with keys that a recipe sweeps written as it writes them: a sweeper takes `optim.lr` and `++optim.lr` for
    two keys, and would start a job for each of the recipe's values, all with the typed one."""
    written = {key.lstrip("+"): key for key in swept}
    split = [(text, *text.partition("=")) for text in overrides]
    return [
        f"{written[key.lstrip('+')]}={value}" if equals and key.lstrip("+") in written else text
        for text, key, equals, value in split
    ]


def _not_listed(override: Override) -> Problem:
    key, _, value = str(override.input_line).lstrip("+").partition("=")
    fix = f"Add hydra/sweeper=optuna, or list values: {key}=A,B"
    return Problem(key, f"{value} is a space to search, and this sweep takes values one by one", fix)


def _corners(parsed: Sequence[Override]) -> list[list[str]]:
    """Jobs at the edges of a space: in every combination, or, where those are too many, along one key after another."""
    axes = [_values(p) for p in parsed]
    if prod(map(len, axes)) <= _MOST:
        return [list(job) for job in product(*axes)]
    first = [a[0] for a in axes]
    return [first, *([*first[:i], v, *first[i + 1 :]] for i, a in enumerate(axes) for v in _thinned(a)[1:])]


def _thinned(values: list[str]) -> list[str]:
    """The first, the last, and some between."""
    if len(values) <= _ALONG:
        return values
    return [values[round(i * (len(values) - 1) / (_ALONG - 1))] for i in range(_ALONG)]


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep):
        return [f"{key}={value.start}", f"{key}={value.end}"]
    found = [f"{key}={v}" for v in override.sweep_string_iterator()]
    if isinstance(value, RangeSweep) and not value.shuffle:
        found.append(f"{key}={value.stop}")  # Optuna draws it too
    return list(dict.fromkeys(found))
