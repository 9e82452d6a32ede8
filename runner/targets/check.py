"""What is wrong with the targets of a configuration: a task's, a custom optimizer's or schedule's, and those among their keys."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import Problem
from runner.schema import Config, CustomOptim, CustomSchedule
from runner.section import is_dotted
from runner.targets.methods import lacking
from runner.targets.modules import Fault, Undecided
from runner.targets.names import Found, find
from runner.targets.parameters import Parameters, is_a, parameters
from runner.task import REQUIRED

LISTED = 12  # names that a message offers at most
_SCHEDULER = "torch.optim.lr_scheduler.LRScheduler"


@dataclass(frozen=True)
class _Call:
    """A target where it stands: `key` is the part of the configuration that has it, `given` its keys."""

    key: str
    target: str
    given: Mapping[str, Any]
    positional: int = 0
    always: tuple[str, ...] = ()  # names that the runner gives beside the keys

    @property
    def target_key(self) -> str:
        return f"{self.key}._target_"


def problems_of(config: Config, here: bool = True) -> Iterator[Problem]:
    """Every target, and every key of one, that is certain not to work. `here`: it is to be made on this machine, so the
    outermost module of each must be found on it."""
    return (problem for call in _calls(config) for problem in _problems(call, here))


def _calls(config: Config) -> Iterator[_Call]:
    """Every call that a configuration asks for, the outer one before those inside."""
    task, optim, schedule = config.task, config.optim, config.schedule
    yield _Call("task", task.target, task.arguments)
    yield from _nested("task", task.arguments)
    if isinstance(optim, CustomOptim):
        yield _Call("optim", optim.target, optim.arguments, positional=1, always=("lr",))
        yield from _nested("optim", optim.arguments)
    if isinstance(schedule, CustomSchedule):
        yield _Call("schedule", schedule.target, schedule.arguments)


def _nested(key: str, value: Any) -> Iterator[_Call]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, Mapping) and "_target_" in inner:
                rest = {k: v for k, v in inner.items() if k != "_target_"}
                yield _Call(f"{key}.{name}", inner["_target_"], rest)
            yield from _nested(f"{key}.{name}", inner)
    elif isinstance(value, list):
        yield from _nested(key, dict(enumerate(value)))


def _problems(call: _Call, here: bool) -> Iterator[Problem]:
    if not isinstance(call.target, str) or not is_dotted(call.target):
        fix = f"Give its full name: {call.target_key}=my_module.MyClass"
        yield Problem(call.target_key, f"{call.target!r} does not name a class", fix)
        return
    try:
        found = find(call.target)
    except Undecided:
        return
    except Fault as fault:
        if here or not fault.outermost:
            yield Problem(call.target_key, fault.what, _instead(call, fault))
        return
    if call.key == "task":
        yield from _unfit(call, found)
    try:
        takes = _left(call, found)
    except Undecided:
        return
    yield from _misfits(call, found, takes)


def _instead(call: _Call, fault: Fault) -> str:
    """What to type in place of a target: what it was probably meant to be first."""
    close = _close(call.target, fault)
    meant = [f"Did you mean {call.target_key}={close}?"] if close else []
    if fault.outermost:
        return " ".join(meant or [fault.fix])
    names = [name.rpartition(".")[2] for name in fault.instead]
    return " ".join([*meant, *([f"There are: {_list(names)}"] if names else []), *([fault.fix] if fault.fix else [])])


def _close(target: str, fault: Fault) -> str:
    """The name in full that is most like a target in the part where that goes wrong; empty if none is."""
    parts = target.split(".")
    if not fault.leading and len(fault.instead) == 1:
        return fault.instead[0]
    at = fault.instead[0].count(".") if fault.leading and fault.instead else len(parts) - 1
    by_end = {name.rpartition(".")[2].lower(): name for name in reversed(fault.instead)}
    close = difflib.get_close_matches(parts[at].lower(), by_end, 1)
    return ".".join([by_end[close[0]], *(parts[at + 1 :] if fault.leading else [])]) if close else ""


def _left(call: _Call, found: Found) -> Parameters:
    """What a call's keys may be: the parameters that are left to them."""
    count = call.positional
    if call.key == "schedule":
        if isinstance(found.node, ast.ClassDef):
            if not is_a(found, _SCHEDULER):
                raise Undecided
            count = 1  # the optimizer
        else:
            count = 2  # updates done, updates in all
    return parameters(found).after(count)


def _unfit(call: _Call, found: Found) -> Iterator[Problem]:
    """A task's class without the methods that every task needs."""
    try:
        missing = lacking(found, REQUIRED) if isinstance(found.node, ast.ClassDef) else []
    except Undecided:
        return
    if missing:
        what = f"{call.target} ({found.place}) has no method {' and no method '.join(missing)}"
        yield Problem(call.target_key, what, f"A task needs {', '.join(REQUIRED)}")


def _misfits(call: _Call, found: Found, takes: Parameters) -> Iterator[Problem]:
    """Keys that the call does not take, and ones that it cannot do without."""
    where = f"{call.target} ({found.place})"
    listed = _list(sorted(n for n in takes.names if n not in call.always)) or "none"
    for name in [] if takes.any_name else [n for n in call.given if n not in takes.names]:
        close = difflib.get_close_matches(name, takes.names, 1)
        meant = f"Did you mean {call.key}.{close[0]}? " if close else ""
        unless = ("task", call.target_key)
        yield Problem(f"{call.key}.{name}", f"is not a key of {where}", f"{meant}Its keys are: {listed}", unless)
    for name in [] if takes.any_name else [n for n in call.always if n not in takes.names]:
        yield Problem(call.target_key, f"{where} does not take {name}, which it is given", f"Its keys are: {listed}")
    for name in takes.names:
        if name in takes.required and name not in call.given and name not in call.always:
            key = f"{call.key}.{name}"
            yield Problem(call.target_key, f"{where} cannot be made without {name}", f"Type {key}=...", unless=(key,))


def _list(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
