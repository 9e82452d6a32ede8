"""Which methods a class is certain to lack, as its source says."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from runner.targets.bindings import bindings
from runner.targets.exposed import handed_over
from runner.targets.modules import Undecided
from runner.targets.names import Found, look_up, qualified
from runner.targets.parameters import DEPTH, SILENT, WITH_INIT, check_form

# What sets an attribute on an object without naming it as one. torch's modules find those in `_modules` as attributes.
_SETS = ("__dict__", "__setattr__", "setattr", "register_module", "add_module", "_modules", "apply")


def lacking(of: Found, methods: Sequence[str]) -> list[str]:
    """Those of `methods` that an object of the class cannot have. Raises Undecided where its source does not tell."""
    has = _attributes(of, DEPTH)
    return [name for name in methods if name not in has]


def _attributes(of: Found, depth: int) -> set[str]:
    """Every name that an object of the class may have: of its classes, or set on the object itself."""
    if depth <= 0 or not isinstance(of.node, ast.ClassDef):
        raise Undecided
    check_form(of)
    node, found = of.node, set(bindings(of.node.body))
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(attr=attr, ctx=ast.Store()):
                found.add(attr)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Attribute(attr=attr) if attr in _SETS:
                raise Undecided
            case ast.Name(id="setattr" | "vars" | "locals"):
                raise Undecided
    if handed_over(node) & {"__class__", *_selves(node)}:
        raise Undecided  # who is given the object may set anything on it
    if found & {"__getattr__", "__getattribute__", "__init_subclass__", "__new__", "__class__"}:
        raise Undecided
    found |= of.set_from_outside()
    if "*" in found:
        raise Undecided
    for base in node.bases:
        name = qualified(of.module, base)
        if name not in SILENT | WITH_INIT:
            found |= _attributes(look_up(name), depth - 1)
    return found


def _selves(node: ast.ClassDef) -> set[str]:
    """What the functions of a class call their object, or the class itself."""
    functions = [f for f in ast.walk(node) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {a.arg for f in functions for a in [*f.args.posonlyargs, *f.args.args][:1]}
