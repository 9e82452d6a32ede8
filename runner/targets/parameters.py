"""What a class or a function can be called with, as its source says."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.targets.bindings import bindings
from runner.targets.modules import Undecided
from runner.targets.names import Found, look_up, qualified

DEPTH = 20  # classes above one another that are looked at

# Bases that are not looked into. None of them has a metaclass or a `__new__` that changes what a class is called with.
SILENT = {
    "builtins.object",
    "abc.ABC",
    "typing.Generic",
    "torch.utils.data.Dataset",
    "torch.utils.data.dataset.Dataset",
}
WITH_INIT = {
    "torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module", "torch.optim.Optimizer",
    "torch.optim.optimizer.Optimizer", "torch.optim.lr_scheduler.LRScheduler",
}  # fmt: skip
_DATACLASS = "dataclasses.dataclass"
_NO_FIELD = {"typing.ClassVar", "typing_extensions.ClassVar", "dataclasses.KW_ONLY"}
_HARMLESS = {"typing.final", "abc.ABCMeta"}


@dataclass(frozen=True)
class Parameters:
    """The parameters of a call. `names` can be given by name, `first` by position, in that order; `required` must be given."""

    names: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    any_name: bool = False
    any_number: bool = False

    def after(self, count: int) -> Parameters:
        """What is left when `count` values were given by position. Raises Undecided if so many cannot be."""
        if count > len(self.first) and not self.any_number:
            raise Undecided
        given = set(self.first[:count])
        names = tuple(n for n in self.names if n not in given)
        return Parameters(names, self.first[count:], self.required - given, self.any_name, self.any_number)


def parameters(of: Found) -> Parameters:
    """What calling a class or function takes. Raises Undecided where its source does not tell."""
    if isinstance(of.node, ast.FunctionDef):
        return _of_function(of.node, 0)
    made = _made_with(of, DEPTH)
    if made == _UNKNOWN:
        raise Undecided
    return made or Parameters()


def is_a(of: Found, full: str, depth: int = DEPTH) -> bool:
    """Whether a class has the one of that name above it. Raises Undecided where that cannot be told."""
    if depth <= 0 or not isinstance(of.node, ast.ClassDef):
        raise Undecided
    names = [qualified(of.module, base) for base in of.node.bases]
    if full in names:
        return True
    return any(is_a(look_up(name), full, depth - 1) for name in names if name not in SILENT | WITH_INIT)


_UNKNOWN = Parameters(any_name=True, any_number=True)  # of a constructor that was not looked at


def _of_function(node: ast.FunctionDef, skip: int) -> Parameters:
    """The parameters of a function but for the first `skip`: `self`."""
    if node.decorator_list:
        raise Undecided
    a = node.args
    ordered = [*a.posonlyargs, *a.args]
    if len(ordered) < skip and a.vararg is None:
        raise Undecided
    without_default = [p.arg for p in ordered[: len(ordered) - len(a.defaults)]][skip:]
    named = [p.arg for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
    first = tuple(p.arg for p in ordered)[skip:]
    by_position_only = {p.arg for p in a.posonlyargs}
    names = (*(n for n in first if n not in by_position_only), *(p.arg for p in a.kwonlyargs))
    return Parameters(names, first, frozenset([*without_default, *named]), a.kwarg is not None, a.vararg is not None)


def _made_with(of: Found, depth: int) -> Parameters | None:
    """What a class is made with; None if neither it nor a class above it has a constructor, `_UNKNOWN` if one has that is not
    looked at. Raises Undecided."""
    if depth <= 0 or not isinstance(of.node, ast.ClassDef):
        raise Undecided
    node, own = of.node, bindings(of.node.body)
    is_dataclass = check_form(of)
    replaced = of.set_from_outside() & {"__init__", "__new__", "__bases__", "*"}
    if replaced or own.keys() & {"__new__", "__init_subclass__", "__signature__"}:
        raise Undecided
    above = [_inherited(of, base, depth) for base in node.bases]
    if "__init__" in own:
        constructor = own["__init__"]
        if not isinstance(constructor, ast.FunctionDef):
            raise Undecided
        return _of_function(constructor, 1)
    if is_dataclass:
        fields = _fields(of, depth)
        names = tuple(fields)
        return Parameters(names, names, frozenset(n for n, required in fields.items() if required))
    made = {p for p in above if p is not None}
    if len(made) > 1:  # which one comes first is not worked out
        raise Undecided
    return made.pop() if made else None


def _inherited(of: Found, base: ast.expr, depth: int) -> Parameters | None:
    name = qualified(of.module, base)
    if name in SILENT:
        return None
    if name in WITH_INIT:
        return _UNKNOWN
    return _made_with(look_up(name), depth - 1)


def check_form(of: Found) -> bool:
    """Whether a class is a dataclass with a constructor made for it. Raises Undecided if a decorator or a metaclass may make
    something else of it."""
    assert isinstance(of.node, ast.ClassDef)
    for keyword in of.node.keywords:
        if keyword.arg != "metaclass" or qualified(of.module, keyword.value) not in _HARMLESS:
            raise Undecided
    found = False
    for decorator in of.node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = qualified(of.module, call.func if call else decorator)
        if name == _DATACLASS:
            if call and (call.args or any(k.arg in (None, "init") for k in call.keywords)):
                raise Undecided
            found = True
        elif name not in _HARMLESS:
            raise Undecided
    return found


def _fields(of: Found, depth: int) -> dict[str, bool]:
    """What the constructor of a dataclass takes, its own fields and those of dataclasses above it, and whether it must be
    given. Raises Undecided."""
    if depth <= 0 or not isinstance(of.node, ast.ClassDef):
        raise Undecided
    fields: dict[str, bool] = {}
    for base in reversed(of.node.bases):
        name = qualified(of.module, base)
        if name not in SILENT | WITH_INIT:
            fields |= _fields(look_up(name), depth - 1)
    if not check_form(of):
        return fields
    _check_annotations(of.node.body)
    for statement in of.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            required = _field(of, statement)
            if required is None:
                fields.pop(statement.target.id, None)
            else:
                fields[statement.target.id] = required
    return fields


def _check_annotations(body: Sequence[ast.stmt]) -> None:
    """Raises Undecided for a class whose fields depend on something, or are set twice."""
    plain = [s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    nested: Iterable[ast.stmt] = (s for s in body if not isinstance(s, (ast.AnnAssign, ast.FunctionDef, ast.ClassDef)))
    if len(set(plain)) < len(plain) or any(isinstance(n, ast.AnnAssign) for s in nested for n in ast.walk(s)):
        raise Undecided
    if set(plain) & {name for s in body if not isinstance(s, ast.AnnAssign) for name in bindings([s])}:
        raise Undecided  # a default that is given by another statement


def _field(of: Found, statement: ast.AnnAssign) -> bool | None:
    """Whether a field must be given; None for what is no parameter of the constructor."""
    value = statement.value
    if _is_no_field(of, statement.annotation):
        return None
    if value is None:
        return True
    if not isinstance(value, ast.Call) or qualified(of.module, value.func) != "dataclasses.field":
        return False
    given = {k.arg: k.value for k in value.keywords}
    if None in given:
        raise Undecided
    init = given.get("init")
    if init is not None and not isinstance(init, ast.Constant):
        raise Undecided
    if init is not None and not init.value:
        return None
    return not {"default", "default_factory"} & set(given)


def _is_no_field(of: Found, annotation: ast.expr) -> bool:
    """Whether an annotation takes its name from the fields, under whatever name that was imported. Raises Undecided where it
    may stand for one that does."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return _is_no_field(of, ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            raise Undecided from None
    if isinstance(annotation, (ast.BinOp, ast.Constant)):  # a union, None
        return False
    full = qualified(of.module, annotation)
    if full in _NO_FIELD:
        return True
    if full in ("typing.Annotated", "typing.Final"):
        raise Undecided
    if full.partition(".")[0] not in sys.stdlib_module_names and not isinstance(look_up(full).node, ast.ClassDef):
        raise Undecided
    return False
