"""Which names the statements of a scope bind, and whether that is all there is to know.

A name's last binding is certain if it stands at the top of the scope by itself; under an `if`, in a `try`, or where a
star import follows, it depends on what happens at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

Bound = dict[str, ast.stmt | None]
_LOGGERS = ("getLogger", "get_logger")  # functions that a module gives its name to, and that leave it as it is


def bindings(body: Sequence[ast.stmt]) -> Bound:
    """The names that statements bind, each with the statement that bound it last; None where that is not certain."""
    bound: Bound = {}
    for statement in body:
        names = _certainly(statement)
        for name in _names_in([statement]):
            bound.pop(name, None)
            bound[name] = statement if name in names else None
        if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in _here([statement])):
            bound = dict.fromkeys(bound)  # it may have bound any of them anew
    for node in ast.walk(ast.Module(list(body), [])):
        if isinstance(node, ast.Global):
            bound |= dict.fromkeys(node.names)
    return bound


def rebound(body: Sequence[ast.stmt]) -> frozenset[str]:
    """The names that more than one statement binds: what stood between them means the earlier one. `import a.b` after
    `import a.c` leaves `a` as it was."""
    seen: set[str] = set()
    again: set[str] = set()
    for statement in body:
        plain = isinstance(statement, ast.Import) and not any(a.asname for a in statement.names)
        names = set() if plain else set(_names_in([statement]))
        again |= names & seen
        seen |= names
    return frozenset(again)


def _certainly(statement: ast.stmt) -> set[str]:
    """The names that a statement is certain to bind, one value each."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {bound_by(alias) for alias in names}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return {name}
    return set()


def bound_by(alias: ast.alias) -> str:
    """The name that a part of an import statement binds."""
    return alias.asname or alias.name.partition(".")[0]


def _names_in(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Every name that statements may bind or delete in the scope that they stand in."""
    for node in _here(body):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias() if node.name != "*":
                yield bound_by(node)
            case ast.AnnAssign(target=ast.Name(), value=None):
                pass
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def _here(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope, without the insides of its functions and classes."""
    queue = list(body)
    while queue:
        node = queue.pop()
        yield node
        if isinstance(node, ast.AnnAssign) and node.value is None:
            continue
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))


def is_loose(tree: ast.Module) -> bool:
    """Whether a module may have names or submodules that no statement shows."""
    imported = {bound_by(n) for n in ast.walk(tree) if isinstance(n, ast.alias)}
    for node in _here(tree.body):
        match node:
            case ast.FunctionDef(name="__getattr__") | ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
            case ast.Name(id="__path__" | "__getattr__"):
                return True
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), *_]) if name in imported:
                return True  # perhaps on this very module
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name not in _LOGGERS:
                if any(isinstance(a, ast.Name) and a.id == "__name__" for a in args):
                    return True  # who knows a module's name can add to it
    return False


def is_rewritten(tree: ast.Module) -> bool:
    """Whether a module may get, or change, its names in ways that no statement shows."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="globals" | "exec"):
                return True
            case ast.Attribute(value=ast.Name(id="sys" | "_sys"), attr="modules" | "meta_path" | "path_hooks"):
                return True
            case ast.ImportFrom(module="sys", names=names) if any(a.name in ("*", "modules") for a in names):
                return True
    outside = [n for s in tree.body for n in ([s, *s.body] if isinstance(s, ast.ClassDef) else [s])]
    return any(isinstance(n, ast.Name) and n.id in ("vars", "locals") for n in _here(outside))
