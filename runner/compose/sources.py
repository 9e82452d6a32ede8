"""Where configurations are found.

`conf/` lies in the installed package or beside it in a checkout. A choice that has no file of its own is
answered by a template: `hardware=6gpu` by `{processes}gpu.yaml`, with the number filled in. Recipes are a flat
folder that appears as the group `recipe`. All through Hydra's public plugins.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.compose.reading import UNREADABLE, no_mapping, unreadable
from runner.compose.sweeps import offer_together
from runner.errors import ConfigError

RECIPES_VARIABLE = "RUNNER_RECIPES"
ENTRY_POINTS = "samestep.recipes"  # of entry points
_FIELD = re.compile(r"\{(\w+)\}")
_command_line: list[Path] = []  # the folders that --config-dir has named


def data_folder(name: str) -> Path:
    """`conf` or `recipes`: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder {name}/ is missing: it was looked for in {package} and {package.parent}")


def recipe_folders() -> list[tuple[str, Path]]:
    """Folders that recipes come from, with the name of who provides them; the first that has a recipe wins.

    Those of the installation stand first, so that a shipped recipe means the same everywhere.
    """
    folders = [("samestep", data_folder("recipes"))]
    for path in filter(None, os.environ.get(RECIPES_VARIABLE, "").split(os.pathsep)):
        folders.append((RECIPES_VARIABLE, Path(path).expanduser().resolve()))
    for given in _command_line:
        folders += [("--config-dir", given / name) for name in ("recipes", "recipe", "") if (given / name).is_dir()]
    here = Path("recipes").resolve()
    if here.is_dir():
        folders.append(("working folder", here))
    folders += [(f"package {name}", folder) for name, folder in _package_folders()]
    once: dict[Path, str] = {}
    for provider, folder in folders:
        once.setdefault(folder, provider)
    return [(provider, folder) for folder, provider in once.items()]


def missing_folders() -> list[str]:
    """What RUNNER_RECIPES names and is no folder, one line each."""
    named = [Path(p).expanduser().resolve() for p in os.environ.get(RECIPES_VARIABLE, "").split(os.pathsep) if p]
    return [f"{RECIPES_VARIABLE} names {folder}, which is no folder" for folder in named if not folder.is_dir()]


def given_folders() -> list[Path]:
    """The folders that the command line has given by --config-dir."""
    return list(_command_line)


def recipes_in(folder: Path) -> list[Path]:
    """The recipes of a folder. A `config.yaml` is none: in a folder given by --config-dir it is the main configuration."""
    return sorted(f for f in folder.glob("*.yaml") if f.stem != "config")


def _package_folders() -> Iterator[tuple[str, Path]]:
    """Folders inside installed packages that declare them: `[project.entry-points."samestep.recipes"] any = "package.folder"`.

    Nothing is imported, not even the packages around the folder: a recipe is never code.
    """
    for entry in sorted(entry_points(group=ENTRY_POINTS)):
        top, *inside = entry.value.split(".")
        spec = importlib.util.find_spec(top)
        for root in (spec.submodule_search_locations or []) if spec is not None else []:
            yield entry.value, Path(root, *inside)


class TemplateSource(FileConfigSource):
    """Answers for choices whose file is a template, such as `hardware/{processes}gpu.yaml`."""

    @staticmethod
    def scheme() -> str:
        return "samestep"

    def _match(self, config_path: str) -> tuple[str, dict[str, int]] | None:
        """The template's own path and the numbers in the name that it answers for; None if none does."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        folder = Path(self.path, group)
        for file in sorted(folder.glob("*{*}*.yaml")) if folder.is_dir() else ():
            pattern = _FIELD.sub(r"(?P<\1>[1-9]\\d*)", file.stem)
            if found := re.fullmatch(pattern, name):
                return f"{group}/{file.stem}", {k: int(v) for k, v in found.groupdict().items()}
        return None

    def is_config(self, config_path: str) -> bool:
        return self._match(config_path) is not None

    def is_group(self, config_path: str) -> bool:  # the groups are those of conf/ itself
        return False

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []

    def load_config(self, config_path: str) -> ConfigResult:
        found = self._match(config_path)
        assert found is not None, config_path
        template, numbers = found
        result = super().load_config(template)
        assert isinstance(result.config, DictConfig)
        with open_dict(result.config):
            result.config.update(numbers)
        return result


class RecipeSource(FileConfigSource):
    """A flat folder of recipes, mounted as the group `recipe`."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    @staticmethod
    def _inside(config_path: str) -> str | None:
        """The path in the folder, or None for one that is no recipe's."""
        if config_path == "recipe":
            return ""
        return config_path.removeprefix("recipe/") if config_path.startswith("recipe/") else None

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", "recipe")

    def is_config(self, config_path: str) -> bool:
        inside = self._inside(config_path)
        return bool(inside) and inside != "config" and super().is_config(str(inside))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            return ["recipe"] if results_filter in (None, ObjectType.GROUP) else []
        if results_filter is ObjectType.GROUP or self._inside(config_path) != "":
            return []
        return [f.stem for f in recipes_in(Path(self.path))]

    def load_config(self, config_path: str) -> ConfigResult:
        inside = str(self._inside(config_path))
        file = Path(self.path, self._normalize_file_name(inside))
        try:
            result = super().load_config(inside)
        except UNREADABLE as error:
            raise ConfigError([unreadable(file, error)]) from None
        if not isinstance(result.config, DictConfig):
            raise ConfigError([no_mapping(file)])
        result.header.setdefault("package", "_global_")  # without it a recipe's values would land under `recipe`
        if result.header["package"] is None:
            result.header["package"] = "_global_"
        return result


class SamestepSearchPath(SearchPathPlugin):
    """Adds the templates and every folder of recipes to where Hydra looks."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("samestep templates", f"samestep://{data_folder('conf')}")
        for provider, folder in recipe_folders():
            search_path.append(provider, f"recipes://{folder}")


def install(config_folders: Sequence[Path] = ()) -> None:
    """Register what this module adds to Hydra, and where a command line's --config-dir may have recipes."""
    _command_line[:] = config_folders
    _register()


@cache
def _register() -> None:
    for plugin in (TemplateSource, RecipeSource, SamestepSearchPath):
        Plugins.instance().register(plugin)
    offer_together()
    OmegaConf.register_new_resolver("samestep.token", lambda: secrets.token_hex(2), use_cache=True, replace=True)
