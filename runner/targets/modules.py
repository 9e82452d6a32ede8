"""Modules as source: found as the import system would find them, read, and never imported.

Undecided   the source does not tell: left to whoever imports the module
Fault       what is certain to go wrong, with the names that may have been meant
"""

from __future__ import annotations

import ast
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from runner.targets.bindings import Bound, bindings, is_loose, is_rewritten, rebound
from runner.targets.exposed import tampered

_INSTALLED = ("site-packages", "dist-packages")
_KNOWN = {*sys.stdlib_module_names, __name__.partition(".")[0]}  # these set nothing on the classes of a project


class Undecided(Exception):
    """The source alone does not tell."""


class Fault(Exception):
    """`what` is wrong with a dotted name. `instead` are full names that there are in the place where it goes wrong, `leading` if
    the rest of the name follows them; `fix` what to do if none is meant. `outermost`: not even the first part of the name is
    there, which another machine may have."""

    def __init__(
        self, what: str, instead: Sequence[str] = (), fix: str = "", leading: bool = False, outermost: bool = False
    ):
        self.what, self.instead, self.fix, self.leading, self.outermost = what, tuple(instead), fix, leading, outermost
        super().__init__(what)


@dataclass(frozen=True, eq=False)
class Module:
    """The source of a module. `bound` has the statement that gave a name its last value, None where that depends on what
    happens at run time. `loose`: names may appear that no statement shows. A folder without an `__init__.py` has neither."""

    name: str
    path: Path | None = None
    folders: tuple[str, ...] = ()  # where its submodules are
    bound: Bound = field(default_factory=dict)
    loose: bool = False
    tampered: frozenset[str] = frozenset()  # what is set on classes from outside them: `Class.attribute`
    rebound: frozenset[str] = frozenset()  # names that mean one thing first and another later
    imports: tuple[ast.Import | ast.ImportFrom, ...] = ()  # wherever they stand

    @property
    def place(self) -> str:
        """Where it is, for people: from the working folder on, or from where packages are installed."""
        path = self.path or Path(next(iter(self.folders), self.name))
        for known in _INSTALLED:
            if known in path.parts:
                return str(Path(*path.parts[path.parts.index(known) + 1 :]))
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)

    @property
    def installed(self) -> bool:
        """Whether it came with Python, was installed, or is ours, rather than written beside what is run."""
        parts = self.path.parts if self.path is not None else ()
        return bool(set(_INSTALLED).intersection(parts)) or self.name.partition(".")[0] in _KNOWN

    @property
    def package(self) -> str:
        """What a relative import is relative to."""
        return self.name if self.folders else self.name.rpartition(".")[0]

    def submodules(self) -> list[str]:
        """The names of the modules in it."""
        return _inside(self.folders)


def module(name: str) -> Module:
    """The source of the module of that name. Raises Fault if importing it is certain to fail, Undecided if it cannot be read."""
    top, *rest = name.split(".")
    if top == "__main__":
        raise Undecided
    spec, full = _top(top), top
    for part in rest:
        around = _read(full, spec, skim=True)
        inner = _found(f"{full}.{part}", around.folders) if around.folders else None
        if inner is None:
            raise _no_submodule(_read(full, spec), part)
        spec, full = inner, f"{full}.{part}"
    return _read(full, spec)


def has_submodule(above: Module, name: str) -> bool:
    """Whether there is a module of that name in `above`."""
    return bool(above.folders) and _found(f"{above.name}.{name}", above.folders) is not None


def _top(name: str) -> ModuleSpec:
    spec = _found(name, None)
    if spec is None:
        if name in sys.modules:
            raise Undecided
        here = _inside((str(Path.cwd()),))
        fix = f"Start the command in the folder that has {name}.py, or install it"
        raise Fault(
            f"there is no module {name} in {Path.cwd()} or on the import path", here, fix, leading=True, outermost=True
        )
    return spec


def _found(name: str, folders: tuple[str, ...] | None) -> ModuleSpec | None:
    """Ask the finders of the import system in their order. Raises Undecided where one of them cannot answer and none else does."""
    unsure = False
    for finder in sys.meta_path:
        try:
            if finder is PathFinder and folders is not None:
                spec = _in_folders(name, folders)
            else:
                spec = finder.find_spec(name, folders, None)
        except Exception:  # it counts on the package around the module being imported
            unsure = True
            continue
        if spec is not None:
            return spec
    if unsure:
        raise Undecided
    return None


def _in_folders(name: str, folders: tuple[str, ...]) -> ModuleSpec | None:
    """What PathFinder would find; PathFinder itself asks for the imported package around a folder without `__init__.py`."""
    parts: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        parts += spec.submodule_search_locations or []
    if not parts:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = parts
    return spec


def _inside(folders: tuple[str, ...]) -> list[str]:
    """The names of the modules in folders, and of the folders of modules that have no `__init__.py`."""
    plain = {m.name for m in pkgutil.iter_modules(list(folders))}
    nested = {f.parent.name for folder in folders for f in Path(folder).glob("*/*.py")}
    return sorted(name for name in plain | nested if name.isidentifier())


def _no_submodule(above: Module, part: str) -> Exception:
    """Why `above` has no module `part` in it."""
    if above.loose:
        return Undecided()
    if not above.folders:
        what = f"{above.name} is a file ({above.place}), not a folder of modules"
        return Fault(f"there is no module {above.name}.{part}: {what}", classes(above))
    inside = [f"{above.name}.{name}" for name in above.submodules()]
    return Fault(f"there is no module {above.name}.{part} in {above.place}", inside, leading=True)


def classes(of: Module) -> list[str]:
    """The full names of the classes and functions that a module has, or imports from beside it."""
    kinds: tuple[type[ast.stmt], ...] = (ast.ClassDef, ast.FunctionDef)
    own = [n for kind in kinds for n, s in of.bound.items() if isinstance(s, kind)]
    taken = [n for n, s in of.bound.items() if isinstance(s, ast.ImportFrom) and _from_inside(of, s)]
    return [f"{of.name}.{n}" for n in dict.fromkeys(own + taken) if not n.startswith("_")]


def _from_inside(of: Module, statement: ast.ImportFrom) -> bool:
    return statement.level > 0 or str(statement.module).startswith(f"{of.name}.")


def _read(name: str, spec: ModuleSpec, skim: bool = False) -> Module:
    """The module of a spec. `skim`: it is enough to know where its submodules are, and one that was installed is taken to be
    sound. Raises Undecided if it is no file of Python, Fault if Python cannot read it."""
    try:
        folders = tuple(spec.submodule_search_locations or ())
    except Exception:
        raise Undecided from None
    if spec.loader is None and folders:
        return Module(name, folders=folders)
    path = Path(spec.origin or "")
    if path.suffix != ".py" or not path.is_file():
        if folders:  # a package in another form: what is in it may be plain
            return Module(name, path, folders, loose=True)
        raise Undecided
    if skim and set(_INSTALLED).intersection(path.parts):
        return Module(name, path, folders)
    stat = path.stat()
    return _parsed(name, path, folders, stat.st_mtime_ns, stat.st_size)


@cache
def _parsed(name: str, path: Path, folders: tuple[str, ...], _changed: int, _size: int) -> Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = path.read_bytes()
            tree = ast.parse(source, str(path))
            if not set(_INSTALLED).intersection(path.parts):
                compile(source, str(path), "exec", dont_inherit=True)  # finds more than the parser does
    except SyntaxError as error:
        at = Module(name, path).place + (f", line {error.lineno}" if error.lineno else "")
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise Fault(f"Python cannot read {at}: {error.msg}{text}") from None
    except (ValueError, RecursionError, MemoryError, OSError):
        raise Undecided from None
    bound, rewritten = bindings(tree.body), is_rewritten(tree)
    if rewritten:
        bound = dict.fromkeys(bound)
    imports = tuple(n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)))
    loose = rewritten or is_loose(tree)
    return Module(name, path, folders, bound, loose, tampered(tree), rebound(tree.body), imports)
