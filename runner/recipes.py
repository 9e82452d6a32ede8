"""Recipes: which there are, where they come from, and the references kept beside them.

Recipes come from the installation, from every folder in RUNNER_RECIPES, from folders given with --config-dir, from `recipes/` in the
working folder, and from installed packages that name one in the entry point group `samestep.recipes`. The first that has
one of a name is the one that `recipe=NAME` takes; the others are listed as hidden.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runner.compare.cause import plan_differences
from runner.compare.read import Run, read_run
from runner.compare.reference import ENDING, against, keep, read_references
from runner.compare.verdict import Kind
from runner.compose.arguments import parse
from runner.compose.jobs import NOT_COMPOSED, plans_of, recipe_sweep
from runner.compose.reading import flaw_of
from runner.compose.sources import RECIPES_VARIABLE, given_folders, install, missing_folders, recipe_folders, recipes_in
from runner.counts import counted
from runner.errors import ConfigError, Problem, RecordError
from runner.rundir import RunFolder, hindrance

MOST = 4  # differences that are told of a run


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as it lies in its folder. `hidden_by` names who provides another one of that name, which is found first."""

    name: str
    provider: str
    file: Path
    hidden_by: str | None = None

    @property
    def about(self) -> str:
        """Its doc line: the first comment at its top that says something and is no instruction to Hydra."""
        for line in self.file.read_text(encoding="utf-8", errors="replace").splitlines():
            text = line.strip("# \t")
            if line.startswith("#") and text and not text.startswith("@package"):
                return text
            if text and not line.startswith("#"):
                break
        return ""

    @property
    def flaw(self) -> Problem | None:
        """What keeps it from being read."""
        return flaw_of(self.file)

    @property
    def reference(self) -> Path:
        return self.file.with_name(self.name + ENDING)


def recipes(config_folders: Sequence[Path] = ()) -> list[Recipe]:
    """All recipes, by name; of those with one name the one that is found first stands first."""
    install(config_folders)
    first: dict[str, str] = {}
    found = []
    for provider, folder in recipe_folders():
        for file in recipes_in(folder):
            found.append(Recipe(file.stem, provider, file, first.get(file.stem)))
            first.setdefault(file.stem, provider)
    return sorted(found, key=lambda r: r.name)


def find(name: str, config_folders: Sequence[Path] = ()) -> Recipe:
    """A recipe by its name. Raises ConfigError."""
    known = {r.name: r for r in recipes(config_folders) if r.hidden_by is None}
    if name not in known:
        close = difflib.get_close_matches(name, list(known), 1)
        meant = f"Did you mean recipe={close[0]}? " if close else ""
        fix = ". ".join([f"{meant}There are: {', '.join(known)}", *missing_folders()])
        raise ConfigError([Problem("recipe", f"there is no recipe '{name}'", fix)])
    return known[name]


def reference_of(name: str) -> Path | None:
    """The file with a recipe's reference: beside the recipe, or in another folder of recipes; None where there is none."""
    file = name + ENDING
    own = [r.reference for r in recipes(given_folders()) if r.name == name and r.hidden_by is None]
    return next((p for p in [*own, *(folder / file for _, folder in recipe_folders())] if p.is_file()), None)


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
    for line in missing_folders():
        print(f"note: {line}", file=sys.stderr)
    if "--json" in arguments:
        rows = [
            {
                "name": r.name,
                "about": r.about,
                "from": r.provider,
                "file": str(r.file),
                "hidden_by": r.hidden_by,
                "cannot_be_read": str(flaw) if (flaw := r.flaw) is not None else None,
                "reference": r.hidden_by is None and reference_of(r.name) is not None,
            }
            for r in known
        ]
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for recipe in known:
        if recipe.hidden_by is not None:
            note = f" (hidden by the one of {recipe.hidden_by})"
        else:
            note = " (has a reference)" if reference_of(recipe.name) is not None else ""
        if (flaw := recipe.flaw) is not None:
            note += f" (cannot be read: {flaw})"
        table.add_row(f"recipe={recipe.name}", recipe.about + note, f"{recipe.provider}: {recipe.file.parent}")
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(
            console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum
        )
    console.print(table)
    return 0


def keep_reference(arguments: list[str]) -> int:
    """`python -m runner keep RUN... recipe=NAME [--to FOLDER] [--config-dir DIR]`"""
    words, options = _split(arguments)
    names = [a.removeprefix("recipe=") for a in words if a.startswith("recipe=")]
    paths = [a for a in words if not a.startswith("recipe=")]
    if len(names) != 1 or not paths:
        fix = "Type: python -m runner keep RUN... recipe=NAME"
        raise ConfigError([Problem("keep", "needs a run (or a folder of runs) and a recipe", fix)])
    recipe = find(names[0], [Path(options["--config-dir"])] if "--config-dir" in options else [])
    file = recipe.reference
    if "--to" in options:
        file = Path(options["--to"]).expanduser().resolve() / file.name
    if (why := hindrance(file.parent)) is not None:
        fix = "Choose a folder of your own: --to FOLDER"
        raise ConfigError([Problem("keep", f"{file.parent} cannot be written to: {why}", fix)])
    try:
        runs = keep(paths, file)
    except RecordError as error:
        raise ConfigError(
            [Problem("keep", str(error), "RUN is a finished run's folder, such as outputs/DAY/RUN")]
        ) from None
    size = file.stat().st_size
    for run in runs:
        print(f"kept {counted(run.count, 'update')} of {run.folder.path} as the reference of recipe={recipe.name}")
    print(f"reference: {file} ({size:,} bytes)")
    for line in _other_experiments(recipe.name, options.get("--config-dir"), runs):
        print(f"note: {line}")
    if file.parent not in [folder.resolve() for _, folder in recipe_folders()]:
        print(f"note: it is found once {RECIPES_VARIABLE} names {file.parent}")
    return 0


def _other_experiments(name: str, config_folder: str | None, runs: Sequence[Run]) -> list[str]:
    """Of each run that is not what the recipe trains by itself: what differs from the nearest of its jobs."""
    line = parse([f"recipe={name}", *(["--config-dir", config_folder] if config_folder is not None else [])])
    nearest: dict[int, list[str]] = {}
    try:
        sweep = recipe_sweep(line)
        free = sweep.keys if sweep is not None and sweep.searched else ()
        for plan in plans_of(line, sweep):
            for i, run in enumerate(runs):
                found = plan_differences(plan, run.plan, free)
                nearest[i] = min(nearest.get(i, found), found, key=len)
            if not any(nearest.values()):
                break
    except NOT_COMPOSED as error:
        return [
            f"recipe={name} cannot be composed by itself, so it was not held against it: {str(error).splitlines()[0]}"
        ]
    told = []
    for i, differences in nearest.items():
        more = f" and {len(differences) - MOST} more" if len(differences) > MOST else ""
        what = f"{'; '.join(differences[:MOST])}{more}"
        if differences:
            told.append(f"{runs[i].folder.path} is another experiment than recipe={name} by itself: {what}")
    return told


def _split(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """What is no flag, and the flags with their values."""
    words: list[str] = []
    options: dict[str, str] = {}
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            words.append(argument)
        elif name not in ("--to", "--config-dir"):
            raise ConfigError([Problem(argument, "is not a flag of keep", "It takes --to FOLDER and --config-dir DIR")])
        elif not equals and not queue:
            raise ConfigError([Problem(name, "needs a folder", f"Type {name} FOLDER")])
        else:
            options[name] = value if equals else queue.pop(0)
    return words, options


def show_against_reference(name: str, folders: Sequence[RunFolder], console: Console) -> int:
    """The verdict of every run against the reference of its recipe, if there is one. Returns the exit code that
    follows: 1 a run is different, 2 the reference cannot be read, else 0: a run of another experiment (a smaller budget,
    say) has no reference, which is said and is no failure."""
    file = reference_of(name)
    if file is None:
        return 0
    try:
        references = read_references(file)
    except RecordError as error:
        _say(console, f"reference: {error}")
        return 2
    kinds = []
    for folder in folders:
        run = read_run(folder.path)
        if isinstance(run, Run):
            run.name = folder.path.name
        kind, reason = against(references, run)
        kinds.append(kind)
        _say(console, f"{folder.path.name} against the reference of recipe={name}: {kind.value}: {reason}")
    return 1 if Kind.different in kinds else 0


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
