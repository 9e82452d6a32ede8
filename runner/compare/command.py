"""`python -m runner compare RUN RUN...`"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from runner import interrupts
from runner.compare import png, report
from runner.compare.facts import as_json
from runner.compare.session import compare
from runner.compare.table import show
from runner.errors import RecordError, RunnerError
from runner.rundir import hindrance

USAGE = """python -m runner compare RUN RUN... [--json] [--tolerance X] [--report FILE] [--png FILE]

RUN            a run's folder, a folder with runs below it (a sweep, a day), or a pattern in quotes
--json         the verdicts for machines, instead of the table
--tolerance X  the relative distance of losses and gradient norms that is put up with, instead of the rule
--report FILE  also write a page with curves, differences, times and memory (one file, needs no network)
--png FILE     also draw the curves and their differences; needs pip install "samestep[png]"

Exit code: 0 the same, 1 different, 2 not comparable or unreadable. The rule is explained in docs/compare.md."""

TYPE = "Type: python -m runner compare RUN RUN... (compare --help says more)"


class UsageError(RunnerError):
    """A command line that cannot be understood, or an output that cannot be written."""

    exit_code = 2


def run(arguments: list[str]) -> int:
    """Compare what a command line names; returns the exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    paths, options = _split(list(arguments))
    if not paths:
        raise UsageError(f"compare needs the folders of two or more runs. {TYPE}")
    tolerance = options.get("--tolerance")
    limit = _number(tolerance) if tolerance is not None else None
    outputs = {name: Path(value) for name, value in options.items() if name in ("--report", "--png")}
    _check_outputs(outputs)
    comparison = compare(paths, limit)
    interrupts.raise_again()  # a file that is half written must be taken away
    try:
        if "--report" in outputs:
            report.write(comparison, outputs["--report"])
        if "--png" in outputs:
            png.write(comparison, outputs["--png"])
    except (RecordError, OSError) as error:  # a full disk, say: no word about the runs, so not exit code 1
        raise UsageError(str(error)) from error
    if "--json" in options:
        print(json.dumps(as_json(comparison), indent=2, allow_nan=False))
    else:
        console = Console()
        show(comparison, console)
        for name, path in outputs.items():
            console.print(f"{name.removeprefix('--')}: {path}", markup=False, highlight=False, soft_wrap=True)
    return comparison.exit_code


def _split(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    paths: list[str] = []
    options: dict[str, str] = {}
    while arguments:
        argument = arguments.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            paths += arguments
            break
        if argument == "--json":
            options[argument] = ""
        elif name in ("--tolerance", "--report", "--png"):
            if not equals and not arguments:
                example = {"--tolerance": "1e-5", "--report": "report.html", "--png": "curves.png"}[name]
                raise UsageError(f"{name} needs a value. Type {name} {example}")
            options[name] = value if equals else arguments.pop(0)
        elif argument.startswith("-"):
            raise UsageError(
                f"compare does not know {argument}; it takes --json, --tolerance X, --report FILE and --png FILE"
            )
        else:
            paths.append(argument)
    return paths, options


def _check_outputs(outputs: Mapping[str, Path]) -> None:
    """Before anything is read: can they be written?"""
    for name, path in outputs.items():
        why = "it is a folder" if path.is_dir() else hindrance(path.parent)
        if why is not None:
            raise UsageError(f"{name}: {path} cannot be written: {why}")
    if "--png" in outputs:
        png.check()


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--tolerance: {text!r} is no relative distance; give a number such as 1e-5")
    return value
