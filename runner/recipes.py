"""Recipes: which there are, where they come from, and the references kept beside them.

Recipes come from the installation, from every folder in RUNNER_RECIPES, from `recipes/` in the working folder, from folders given with
--config-dir, and from installed packages that name one in the entry point group `samestep.recipes`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runner.compare.pairs import Verdict
from runner.compare.read import LeftOut, read_run
from runner.compare.reference import ENDING, against, keep, read_references
from runner.compose.sources import recipe_folders
from runner.errors import ConfigError, Problem, RecordError
from runner.rundir import RunFolder


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as it lies in its folder."""

    name: str
    provider: str
    file: Path

    @property
    def about(self) -> str:
        """Its doc line: the first comment that is no instruction to Hydra."""
        for line in self.file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("#") and "@package" not in line:
                return line.lstrip("# ").strip()
        return ""

    @property
    def reference(self) -> Path:
        return self.file.with_name(self.name + ENDING)


def recipes(config_folders: Sequence[Path] = ()) -> list[Recipe]:
    """All recipes by name. Where two folders have one of the same name, the one that Hydra would take comes first."""
    folders = [("--config-dir", f / "recipe") for f in config_folders] + recipe_folders()
    found: dict[str, Recipe] = {}
    for provider, folder in folders:
        for file in sorted(folder.glob("*.yaml")):
            found.setdefault(file.stem, Recipe(file.stem, provider, file))
    return sorted(found.values(), key=lambda r: r.name)


def find(name: str, config_folders: Sequence[Path] = ()) -> Recipe:
    """A recipe by its name. Raises ConfigError."""
    known = {r.name: r for r in recipes(config_folders)}
    if name not in known:
        raise ConfigError([Problem("recipe", f"there is no recipe '{name}'", f"There are: {', '.join(known)}")])
    return known[name]


def list_recipes(arguments: list[str]) -> int:
    """`python -m runner recipes [--json] [--config-dir DIR]`"""
    folders = [Path(b) for a, b in pairwise(arguments) if a in ("--config-dir", "-cd")]
    folders += [Path(a.partition("=")[2]) for a in arguments if a.startswith("--config-dir=")]
    unknown = [
        a for a in arguments if a.startswith("-") and a.partition("=")[0] not in ("--json", "--config-dir", "-cd")
    ]
    if unknown:
        raise ConfigError(Problem(a, "is not a flag of recipes", "It takes --json and --config-dir") for a in unknown)
    known = recipes(folders)
    if "--json" in arguments:
        rows = [
            {
                "name": r.name,
                "about": r.about,
                "from": r.provider,
                "file": str(r.file),
                "reference": r.reference.exists(),
            }
            for r in known
        ]
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for recipe in known:
        kept = " (has a reference)" if recipe.reference.exists() else ""
        table.add_row(f"recipe={recipe.name}", recipe.about + kept, f"{recipe.provider}: {recipe.file.parent}")
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(
            console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum
        )
    console.print(table)
    return 0


def keep_reference(arguments: list[str]) -> int:
    """`python -m runner keep RUN recipe=NAME`"""
    names = [a.removeprefix("recipe=") for a in arguments if a.startswith("recipe=")]
    paths = [Path(a) for a in arguments if not a.startswith("recipe=")]
    if len(names) != 1 or len(paths) != 1:
        raise ConfigError([Problem("keep", "needs a run and a recipe", "Type: python -m runner keep RUN recipe=NAME")])
    recipe = find(names[0])
    run = keep(paths[0], recipe.reference)
    size = recipe.reference.stat().st_size
    print(
        f"kept {run.count} updates of {paths[0]} as the reference of recipe={recipe.name}: {recipe.reference} ({size:,} bytes)"
    )
    return 0


def show_against_reference(name: str, folders: Sequence[RunFolder], console: Console) -> None:
    """The verdict of every run against the reference of its recipe, if there is one."""
    recipe = next((r for r in recipes() if r.name == name and r.reference.exists()), None)
    if recipe is None:
        return
    try:
        references = read_references(recipe.reference)
    except RecordError as error:
        console.print(f"reference: {error}", markup=False, highlight=False, soft_wrap=True)
        return
    for folder in folders:
        run = read_run(folder.path)
        if isinstance(run, LeftOut):
            continue
        run.name = folder.path.name
        found = against(references, run)
        text = (
            f"{found.kind.value}: {found.reason}"
            if isinstance(found, Verdict)
            else f"not comparable: {'; '.join(found)}"
        )
        console.print(
            f"{run.name} against the reference of recipe={name}: {text}", markup=False, highlight=False, soft_wrap=True
        )
