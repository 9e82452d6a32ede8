"""What a dotted name stands for: a class or a function in some module's source, followed through imports and assignments."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from runner.targets.bindings import bound_by
from runner.targets.modules import Fault, Module, Undecided, classes, has_submodule, module

STEPS = 12  # from a name to what it stands for; more are not followed
BESIDE = 16  # modules beside a task's that are read for what they set on it


@dataclass(frozen=True)
class Found:
    """A class or function, and the module that it is written in."""

    module: Module
    node: ast.ClassDef | ast.FunctionDef

    @property
    def place(self) -> str:
        return f"{self.module.place}, line {self.node.lineno}"

    def set_from_outside(self) -> set[str]:
        """The attributes that its module, one that this imports or a package around it sets on it; `*` where it is not told which."""
        tampered = set_by(self.module) | _around(self.module)
        return {entry.partition(".")[2] for entry in tampered if entry.partition(".")[0] in (self.node.name, "*")}


def find(target: str) -> Found:
    """What a `_target_` names. Raises Fault if it is certain to name no class or function, Undecided where that is not told."""
    where, _, name = target.rpartition(".")
    found = _follow(module(where), name, STEPS)
    if isinstance(found, Module):
        if found.loose:  # a module may put something else in its own place
            raise Undecided
        raise Fault(f"{target} is a module ({found.place}), not a class or a function", classes(found))
    return found


def qualified(within: Module, expression: ast.expr, steps: int = STEPS) -> str:
    """The full name of what an expression names in a module: a class's base, a decorator. Raises Undecided if it is no name."""
    match expression:
        case ast.Attribute(value=value, attr=attr):
            return f"{qualified(within, value, steps)}.{attr}"
        case ast.Subscript(value=value):  # Base[int]
            return qualified(within, value, steps)
        case ast.Name(id=name):
            return _qualified(within, name, steps)
    raise Undecided


def look_up(full: str, steps: int = STEPS) -> Found:
    """The class or function of a full name that begins with modules. Raises Undecided if there is none."""
    parts = full.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Found | Module = module(".".join(parts[:length]))
            for part in parts[length:]:
                if not isinstance(found, Module):
                    raise Undecided
                found = _follow(found, part, steps - 1)
        except Fault:
            continue  # what stands there may be a name in a module, not a module
        if isinstance(found, Module):
            raise Undecided
        return found
    raise Undecided


def _qualified(within: Module, name: str, steps: int) -> str:
    if steps <= 0:
        raise Undecided
    if name not in within.bound:
        if within.loose or not hasattr(builtins, name):
            raise Undecided
        return f"builtins.{name}"
    if name in within.rebound:
        raise Undecided
    statement = within.bound[name]
    match statement:
        case ast.ClassDef() | ast.FunctionDef():
            return f"{within.name}.{name}"
        case ast.ImportFrom():
            return f"{_source(within, statement)}.{_original(statement, name)}"
        case ast.Import():
            return next(a.name if a.asname else name for a in statement.names if bound_by(a) == name)
        case ast.Assign(value=value) if isinstance(value, (ast.Name, ast.Attribute)):
            return qualified(within, value, steps - 1)
    raise Undecided


def _follow(within: Module, name: str, steps: int) -> Found | Module:
    """What `name` stands for in a module."""
    if steps <= 0:
        raise Undecided
    if name not in within.bound:
        if within.loose:
            raise Undecided
        if has_submodule(within, name):
            return module(f"{within.name}.{name}")
        if _filled_from_elsewhere(within, name):
            raise Undecided
        raise Fault(f"{within.name} ({within.place}) has no class or function {name}", classes(within))
    if _replaced(within, name):
        raise Undecided
    statement = within.bound[name]
    match statement:
        case ast.ClassDef() | ast.FunctionDef():
            return Found(within, statement)
        case ast.ImportFrom():
            return _imported(within, statement, name, steps)
        case ast.Assign(value=value) | ast.AnnAssign(value=value) if isinstance(value, (ast.Name, ast.Attribute)):
            return look_up(qualified(within, value), steps - 1)
        case ast.Assign(value=value) if _is_plain_value(value):
            what = (
                f"{within.name}.{name} ({within.place}, line {statement.lineno}) is a value, not a class or a function"
            )
            raise Fault(what, classes(within))
    raise Undecided


def _filled_from_elsewhere(within: Module, name: str) -> bool:
    """Whether something else may give a module a name: where it has nothing of its own, or its package sets names on it."""
    if within.path is not None and not classes(within):
        return True
    return _replaced(within, name)


def _replaced(within: Module, name: str) -> bool:
    """Whether a package around a module sets a name on it, whatever the module itself has under that name."""
    last = within.name.rpartition(".")[2]
    return bool({f"{last}.{name}", f"{last}.*"} & _around(within))


def _around(within: Module) -> frozenset[str]:
    """What the packages around a module set on things, as `Module.tampered`: of one that was installed only the nearest."""
    package = within.name.rpartition(".")[0]
    if not package:
        return frozenset()
    try:
        around = module(package)
    except Fault:  # it was installed, and taken to be sound
        raise Undecided from None
    return set_by(around) | (frozenset() if around.installed else _around(around))


def _imported(within: Module, statement: ast.ImportFrom, name: str, steps: int) -> Found | Module:
    """What a name stands for that a module imports from another. Only what is missing beside it is a fault for certain: what
    comes from elsewhere may be on an import path that is made while importing."""
    source, original = _source(within, statement), _original(statement, name)
    if source == within.name:  # a package that imports from itself: one of its modules
        if not has_submodule(within, original):
            raise Undecided
        return module(f"{source}.{original}")
    try:
        return _follow(module(source), original, steps - 1)
    except Fault as fault:
        if source.partition(".")[0] != within.name.partition(".")[0]:
            raise Undecided from None
        raise Fault(f"{within.place}, line {statement.lineno}, imports {name}, but {fault.what}") from None


def set_by(within: Module) -> frozenset[str]:
    """What a module sets on things, as `Module.tampered`, and those beside it that it imports, which may reach back into it."""
    if within.installed or within.path is None:
        return within.tampered
    folder = within.path.parents[within.name.count(".") + (within.path.stem == "__init__")]
    seen, queue = {within.name: within}, [within]
    while queue and len(seen) < BESIDE:
        for name in _imports(queue.pop()):
            try:
                found = module(name) if name not in seen else within
            except (Undecided, Fault):
                continue
            if name not in seen and not found.installed and found.path and found.path.is_relative_to(folder):
                seen[name] = found
                queue.append(found)
    return frozenset().union(*(m.tampered for m in seen.values()))


def _imports(of: Module) -> Iterator[str]:
    """The full names of the modules that a module may import."""
    for statement in of.imports:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
            continue
        try:
            source = _source(of, statement)
        except Undecided:
            continue
        yield source
        yield from (f"{source}.{alias.name}" for alias in statement.names)


def _source(within: Module, statement: ast.ImportFrom) -> str:
    """The module that a statement imports from."""
    if not statement.level:
        return str(statement.module)
    parts = within.package.split(".")
    if statement.level > len(parts) or not within.package:
        raise Undecided
    around = parts[: len(parts) - statement.level + 1]
    return ".".join([*around, *([statement.module] if statement.module else [])])


def _original(statement: ast.ImportFrom, name: str) -> str:
    return next(a.name for a in reversed(statement.names) if bound_by(a) == name)


def _is_plain_value(value: ast.expr) -> bool:
    return isinstance(value, (ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Set, ast.JoinedStr))
