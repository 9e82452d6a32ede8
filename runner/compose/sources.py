"""Where configurations are found.

`conf/` lies in the installed package or beside it in a checkout. A choice that has no file of its own is
answered by a template: `hardware=6gpu` by `{processes}gpu.yaml`, with the number filled in. Recipes are a flat
folder that appears as the group `recipe`. All through Hydra's public plugins.
"""

from __future__ import annotations

import os
import re
import secrets
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict

RECIPES_VARIABLE = "RUNNER_RECIPES"
ENTRY_POINTS = "samestep.recipes"
_FIELD = re.compile(r"\{(\w+)\}")


def data_folder(name: str) -> Path:
    """`conf` or `recipes`: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder {name}/ is missing: it was looked for in {package} and {package.parent}")


def recipe_folders() -> list[tuple[str, Path]]:
    """Folders that recipes come from, with the name of who provides them; the first that has a recipe wins."""
    folders = [("samestep", data_folder("recipes"))]
    for path in filter(None, os.environ.get(RECIPES_VARIABLE, "").split(os.pathsep)):
        folders.append((RECIPES_VARIABLE, Path(path).expanduser().resolve()))
    here = Path("recipes").resolve()
    if here.is_dir() and here != folders[0][1]:
        folders.append(("working folder", here))
    return folders + _of_packages()


def _of_packages() -> list[tuple[str, Path]]:
    """Folders of installed packages: an entry point `name = "package.of.recipes"` in the group `samestep.recipes`.

    The package is found, not run, apart from those that it lies in.
    """
    found = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            spec = find_spec(point.value)
        except (ImportError, ValueError):
            spec = None
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            found.append((f"package {point.value}", Path(place)))
    return found


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
        return bool(inside) and super().is_config(str(inside))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            return ["recipe"] if results_filter in (None, ObjectType.GROUP) else []
        if results_filter is ObjectType.GROUP or self._inside(config_path) != "":
            return []
        return sorted(f.stem for f in Path(self.path).glob("*.yaml"))

    def load_config(self, config_path: str) -> ConfigResult:
        result = super().load_config(str(self._inside(config_path)))
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


@cache
def install() -> None:
    """Register what this module adds to Hydra. Once per process."""
    for plugin in (TemplateSource, RecipeSource, SamestepSearchPath):
        Plugins.instance().register(plugin)
    OmegaConf.register_new_resolver("samestep.token", lambda: secrets.token_hex(2), use_cache=True, replace=True)
