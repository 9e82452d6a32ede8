"""Whether the folder that a run or a sweep would be given can be made and written to."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from runner.compose.arguments import CommandLine
from runner.compose.overrides import is_sweep, prepare
from runner.errors import ConfigError, Problem
from runner.rundir import hindrance


def folder_problems(line: CommandLine, using: ConfigLoader) -> list[Problem]:
    """The folder of the run, or of the sweep and of its first job, must be one that can be made and written to."""
    single = [o for o in line.overrides if not is_sweep(o, using)]
    own = [o for o in single if o.lstrip("+").startswith(("hydra.", "recipe="))]
    mode = RunMode.MULTIRUN if line.multirun else RunMode.RUN
    for known in (single, own):  # what is wrong with the others is told elsewhere
        try:
            config = using.load_configuration("config", prepare(known), run_mode=mode)
            break
        except (ConfigError, HydraException, OmegaConfBaseException, ValueError):
            continue
    else:
        return []
    if config.hydra.mode in (None, RunMode.RUN) and not line.multirun:
        return _unwritable(config, "hydra.run.dir", whole=known is single)
    with open_dict(config.hydra.job):
        config.hydra.job.num = 0
    return _unwritable(config, "hydra.sweep.dir") or _unwritable(config, "hydra.sweep.subdir", "hydra.sweep.dir")


def _unwritable(config: DictConfig, key: str, above: str | None = None, whole: bool = False) -> list[Problem]:
    """What is wrong with the folder that `key` names, inside of that which `above` names. `whole`: the configuration is
    that of a job, so that nothing more will be filled in."""
    fix = f"Set {key}=FOLDER"
    try:
        inside = str(OmegaConf.select(config, above)) if above else ""
        folder = str(OmegaConf.select(config, key))
    except OmegaConfBaseException as error:
        lacks = whole and isinstance(error, InterpolationKeyError)
        return [Problem(key, str(error).splitlines()[0], fix)] if lacks else []
    if not folder.strip():
        section, _, name = key.rpartition(".")
        filled_in = not whole and OmegaConf.is_interpolation(OmegaConf.select(config, section), name)
        return [] if filled_in else [Problem(key, "is empty", fix)]
    why = hindrance(Path(inside, folder))
    return [] if why is None else [Problem(key, f"nothing can be written to {folder}: {why}", fix)]
