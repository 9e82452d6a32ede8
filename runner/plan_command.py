"""`plan`: what a command line would do, without doing it. Imports no torch unless it is asked to look closer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from runner.build import check_targets
from runner.choices import BatchMode
from runner.compose import app
from runner.compose.arguments import CommandLine, parse
from runner.compose.flags import Flags
from runner.compose.jobs import recipe_sweep
from runner.compose.links import overrides_of, read_link
from runner.errors import ConfigError, Problem
from runner.plan import Plan, Seconds, Sizes
from runner.plan_view import show_plan, sizes_of
from runner.predict.link import predict, predictable, shape_of
from runner.predict.pace import Pace, pace_of
from runner.predict.scale import scale
from runner.scale_view import show_scale
from runner.surroundings import Link

_ALONE = ("--json", "--load", "--memory", "--scale")
_WITH_VALUE = ("--from", "--link", "--inside")
_FLAGS = Flags("plan", {"--config-dir": ("FOLDER",)}, (*_ALONE, *_WITH_VALUE))


@dataclass(slots=True)
class _Asked:
    """A command line of `plan`: its own flags apart from the rest."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


def run(arguments: Sequence[str]) -> int:
    """Print the plan. Returns the exit code; raises ConfigError."""
    asked = _taken_apart(arguments)
    line = _line(asked)
    plan = app.compose_one(line, lambda p: check_targets(p.config, here=False))
    if plan.config.batch.mode is BatchMode.auto_memory:
        from runner.predict.choice import choose  # imports torch, and runs windows

        plan = choose(plan)
    sizes = sizes_of(plan.config.task, load="--load" in asked.flags)
    if sizes is not None:
        plan = plan.with_sizes(sizes)
    if "--memory" in asked.flags and plan.memory.peak_bytes is None:
        from runner.predict.memory import predicted  # imports torch, and runs a window

        plan = predicted(plan)
    pace = pace_of(Path(asked.values["--from"])) if "--from" in asked.values else None
    inside = read_link("--inside", asked.values["--inside"]) if "--inside" in asked.values else None
    plan = plan.model_copy(update={"seconds": _seconds(plan, sizes, pace, inside)})
    if "--scale" in asked.flags:
        return _scale(plan, sizes, pace, inside, "--json" in asked.flags)
    if "--json" in asked.flags:
        print(plan.to_json())
    else:
        show_plan(plan)
    _tell_sweep(line, sys.stderr if "--json" in asked.flags else sys.stdout)
    return 0


def _tell_sweep(line: CommandLine, out: TextIO) -> None:
    """Say that a recipe sweeps: its plan is that of what its jobs have in common."""
    sweep = recipe_sweep(line) if line.sets("recipe") else None
    if sweep is None or (len(sweep.jobs) == 1 and not sweep.searched):
        return
    keys = [key for key in sweep.keys if not line.sets(key)]
    would = (
        f"search over {', '.join(keys)}" if sweep.searched else f"start {len(sweep.jobs)} jobs, over {', '.join(keys)}"
    )
    what = f"this recipe would {would}; this is the plan without its sweep"
    print(f"note: {what}. For the plan of one job type {' '.join(f'{key}=...' for key in keys)}", file=out)


def _taken_apart(arguments: Sequence[str]) -> _Asked:
    asked, queue = _Asked(), list(arguments)
    while queue:
        argument = queue.pop(0)
        name, _, value = argument.partition("=")
        if argument in _ALONE:
            asked.flags.add(argument)
        elif name in _WITH_VALUE:
            value = value or (queue.pop(0) if queue else "")
            if not value:
                example = {"--from": "outputs/DAY/RUN", "--link": "link.yaml", "--inside": "100gbit"}[name]
                raise ConfigError([Problem(name, "needs a value", f"Type {name} {example}")])
            asked.values[name] = value
        else:
            asked.rest.append(argument)
    return asked


def _line(asked: _Asked) -> CommandLine:
    added: list[str] = []
    if "--link" in asked.values:
        added = overrides_of(read_link("--link", asked.values["--link"]))
        if given := [o for o in asked.rest if o.partition("=")[0].partition(".")[0] == "link"]:
            fix = f"Leave out --link or {' '.join(given)}"
            raise ConfigError([Problem("--link", "the link is given twice", fix)])
    return parse([*asked.rest, *added], _FLAGS)


def _seconds(plan: Plan, sizes: Sizes | None, pace: Pace | None, inside: Link | None) -> Seconds | None:
    if sizes is None:
        if pace is not None:
            what = f"the size of {plan.config.task.target} is known once it is loaded"
            raise ConfigError([Problem("--from", what, "Add --load")])
        return None
    return predict(plan, sizes, pace, inside)


def _scale(plan: Plan, sizes: Sizes | None, pace: Pace | None, inside: Link | None, as_json: bool) -> int:
    if sizes is None:
        what = f"the size of {plan.config.task.target} is known once it is loaded"
        raise ConfigError([Problem("--scale", what, "Add --load")])
    if not predictable(plan):
        what = "what sharded models and compress=powersgd send depends on more than the number of parameters"
        raise ConfigError([Problem("--scale", what, "Use hardware.parallel=ddp, and another compress")])
    shape = shape_of(plan, inside, always=True)
    if shape is None:
        what = "what joins the nodes is not known"
        raise ConfigError([Problem("--scale", what, "Add link=10gbit, say, or --link link.yaml, and hardware.nodes=2")])
    rows = list(scale(plan, sizes, shape, pace))
    if as_json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
    else:
        show_scale(plan, sizes, shape, rows)
    return 0
