"""The verbs: run (the default), plan, compare, twin, doctor, recipes, keep. Heavy imports happen inside them, so that each answers at once."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runner import interrupts
from runner.channels import outlasting
from runner.errors import ConfigError, Problem, RunnerError
from runner.usage import USAGE, VERBS


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0 well, 1 failed, 2 not a configuration that can run."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not {"", str(Path.cwd())}.intersection(
        sys.path[:1]
    ):  # installed command: a task beside it must be found as under `python -m`
        sys.path.insert(0, str(Path.cwd()))
    verb = arguments.pop(0) if arguments and arguments[0] in VERBS else "run"
    with outlasting() as lost:
        code = _told(verb, arguments)
    for why in lost:
        print(f"not all that was said could be written: {why}", file=sys.stderr)
    return code or (2 if lost else 0)


def _told(verb: str, arguments: list[str]) -> int:
    """The exit code of a verb, after what stopped it has been said."""
    try:
        return _answer(verb, arguments)
    except RunnerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _answer(verb: str, arguments: list[str]) -> int:
    if "--version" in arguments or "-V" in arguments:
        print(f"samestep {_version()}")
        return 0
    if verb in USAGE and {"--help", "-h"}.intersection(arguments):
        print(USAGE[verb])
        return 0
    if arguments in (["-sc", "install=bash"], ["--shell-completion", "install=bash"]):
        from runner.completion import BASH

        print(BASH, end="")
        return 0
    verbs = {
        "plan": _plan,
        "compare": _compare,
        "twin": _twin,
        "doctor": _doctor,
        "recipes": _recipes,
        "keep": _keep,
    }
    return verbs.get(verb, _run)(arguments)


def _run(arguments: list[str]) -> int:
    """Train: one run, or every job of a sweep."""
    from runner.compose import app
    from runner.compose.arguments import parse
    from runner.launch import joining, slurm, warm
    from runner.launch.ending import Terminated, signals_raised
    from runner.runs import Runs, check_runnable

    arguments = [*arguments, *slurm.arguments_of(os.environ, arguments, slurm.address_of)]
    line = parse(arguments)
    seat = joining.seat_of(line.overrides) if line.trains else None
    if seat is not None:  # the first node has the configuration
        interrupts.raise_again()
        return joining.join(seat, joining.common(arguments))
    app.check(line, check_runnable)
    interrupts.raise_again()  # from here on processes are started
    if line.trains and not line.sets("hydra/launcher"):  # else jobs start in other processes
        warm.warm_up()  # now, so that torch is loaded while Hydra composes
    runs = Runs(sys.argv)
    try:
        with signals_raised(runs.end):
            app.run(line, runs, runs.sweeping)
    except Terminated as ended:
        return 128 + ended.number
    finally:
        runs.close()
    return runs.exit_code


def _plan(arguments: list[str]) -> int:
    """Print the plan of a command line. Starts nothing."""
    from runner import plan_command

    return plan_command.run(arguments)


def _doctor(arguments: list[str]) -> int:
    """Look at this machine and the other nodes: what they have, what is wrong. Imports no torch here."""
    from runner.doctor import command

    interrupts.raise_again()
    return command.run(arguments)


def _compare(arguments: list[str]) -> int:
    """Say whether runs are the same. Starts nothing and imports no torch."""
    from runner.compare import command

    return command.run(arguments)


def _twin(arguments: list[str]) -> int:
    """Run again from disturbed weights: the yardstick of `compare`."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ConfigError([Problem("twin", "takes one run's folder", "Type: python -m runner twin outputs/DAY/RUN")])
    from runner.launch import warm
    from runner.twin import make_twin, plan_to_disturb

    plan = plan_to_disturb(Path(arguments[0]))
    interrupts.raise_again()
    warm.warm_up()
    return make_twin(Path(arguments[0]), plan)


def _recipes(arguments: list[str]) -> int:
    """List the recipes, with where they come from."""
    from runner.recipes import list_recipes

    return list_recipes(arguments)


def _keep(arguments: list[str]) -> int:
    """Keep a run as the reference of a recipe."""
    from runner.recipes import keep_reference

    interrupts.raise_again()
    return keep_reference(arguments)


def _version() -> str:
    try:
        return version("samestep")
    except PackageNotFoundError:
        return "(not installed)"
