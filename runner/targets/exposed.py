"""What a module's statements may do to a class from outside its own: set an attribute on it, or hand it to something that may.

A class that is handed over as a value, to a decorator, in a loop or under another name, can be given anything there. How a
class is mostly named hands nothing over: it is called, subclassed, asked for an attribute, or stands in an annotation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runner.targets.bindings import bound_by

_LOOKS = ("super", "isinstance", "issubclass", "hasattr", "partial")  # calls that leave what they are given as it is


def tampered(tree: ast.Module) -> frozenset[str]:
    """What is set on a name from outside its own statements, as `Class.attribute`; `Class.*` where it is not told which, and
    `*.attribute` where it is not told on what."""
    found = {f"{name}.*" for name in _handed_over(tree)}
    for node in _run(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=attr, ctx=ast.Store()):
                found.add(f"{name}.{attr}")
            case ast.Attribute(attr=attr, ctx=ast.Store()):  # type(task).loss = ...
                found.add(f"*.{attr}")
    return frozenset(found | _under_other_names(tree, found))


def handed_over(tree: ast.AST) -> set[str]:
    """The names, and last parts of dotted names, that stand somewhere as a value, by themselves or under another name."""
    found = _handed_over(tree)
    return found | {entry.partition(".")[0] for entry in _under_other_names(tree, found)}


def _handed_over(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in _run(tree):
        for value in _values(node):
            match value:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    found.add(name)
    return found


def _values(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that something else gets hold of."""
    match node:
        case ast.arg() | ast.Attribute() | ast.Compare() | ast.Expr() | ast.ExceptHandler() | ast.MatchClass():
            return
        case ast.Assign() if _is_alias(node):
            return
        case ast.ClassDef(keywords=keywords):  # its bases and decorators are looked at by themselves
            yield from (k.value for k in keywords)
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            if node.decorator_list:  # fastcore's @patch goes by the annotation of `self`
                yield from (n for a in [*args.posonlyargs, *args.args][:1] for n in _named(a.annotation))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _LOOKS:
            return
        case ast.Call(args=args, keywords=keywords):
            yield from (*args, *(k.value for k in keywords))
        case ast.Subscript(slice=index):
            yield index
        case ast.AnnAssign(value=value):
            yield from [value] if value is not None else []
        case _:
            yield from ast.iter_child_nodes(node)


def _named(annotation: ast.expr | None) -> Iterator[ast.AST]:
    """Every name in an annotation, also one that is written as text."""
    for node in ast.walk(annotation) if annotation is not None else ():
        yield node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                yield from ast.walk(ast.parse(node.value, mode="eval"))
            except SyntaxError:
                continue


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that run when it is imported, or later; no annotations."""
    queue = [tree]
    while queue:
        node = queue.pop()
        yield node
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()])):
                queue.extend(node.orelse)  # a module that is imported has another name
            case ast.arg():
                pass
            case ast.AnnAssign(target=target, value=value):
                queue.extend([target, *([value] if value is not None else [])])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                queue.extend(n for n in ast.iter_child_nodes(node) if n is not node.returns)
            case ast.Call(func=ast.Name(id=name)) if name in ("isinstance", "issubclass"):
                queue.extend(node.args[:1])  # the others may stand in a tuple
            case _:
                queue.extend(ast.iter_child_nodes(node))


def _is_alias(node: ast.Assign) -> bool:
    """Whether it only gives something another name, which can be followed."""
    return isinstance(node.value, (ast.Name, ast.Attribute)) and all(isinstance(t, ast.Name) for t in node.targets)


def _under_other_names(tree: ast.AST, found: set[str]) -> set[str]:
    """What is set on a name by way of others that were given to the same thing."""
    meant: dict[str, set[str]] = {}
    for node in _run(tree):
        match node:
            case ast.Assign(value=ast.Name(id=name) | ast.Attribute(attr=name), targets=targets) if _is_alias(node):
                for target in targets:
                    meant.setdefault(ast.unparse(target), set()).add(name)
            case ast.alias(name=name, asname=str()):
                meant.setdefault(bound_by(node), set()).add(name.rpartition(".")[2])
    more: set[str] = set()
    queue = list(found)
    while queue:
        name, _, attribute = queue.pop().partition(".")
        new = {f"{n}.{attribute}" for n in meant.get(name, ())} - more
        more |= new
        queue.extend(new)
    return more
