"""Which run folders the arguments of a command name: runs, folders with runs somewhere below, patterns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.compare.read import LeftOut

DEPTH = 4  # how far below a folder that is no run its runs are looked for
_SIGNS = ("plan.json", "status.json", "updates.jsonl")


def find(arguments: Iterable[str]) -> tuple[list[Path], list[LeftOut]]:
    """The run folders that the arguments name: runs, folders with runs somewhere below, patterns."""
    found: dict[str, Path] = {}
    left_out: list[LeftOut] = []
    for argument in arguments:
        try:
            for path in _matching(argument):
                below = list(_runs_below(path, DEPTH)) if path.is_dir() else []
                left_out += [x for x in below if isinstance(x, LeftOut)]
                for run in (x for x in below if isinstance(x, Path)):
                    found.setdefault(str(run.resolve()), run)
                if not below:
                    left_out.append(LeftOut(path, _why_no_run(path)))
        except OSError as error:
            left_out.append(LeftOut(Path(argument), f"cannot be read: {error.strerror or error}"))
        except ValueError as error:  # of the pattern
            left_out.append(LeftOut(Path(argument), str(error)))
    return list(found.values()), left_out


def _matching(argument: str) -> list[Path]:
    """The one path that an argument is, or those that match it as a pattern. Raises ValueError where none does."""
    path = Path(argument)
    if path.exists() or not any(sign in argument for sign in "*?["):
        return [path]
    base = Path(path.anchor)
    paths = sorted(base.glob(str(path.relative_to(base))))
    if not paths:
        raise ValueError("no file or folder matches this pattern")
    return paths


def _runs_below(path: Path, depth: int) -> Iterable[Path | LeftOut]:
    try:
        if is_run(path):
            yield path
            return
        children = sorted(p for p in path.iterdir() if p.is_dir() and not p.is_symlink()) if depth else []
    except OSError as error:
        yield LeftOut(path, f"cannot be read: {error.strerror or error}")
        return
    for child in sorted(children, key=lambda p: (not p.name.isdecimal(), int(p.name) if p.name.isdecimal() else 0)):
        yield from _runs_below(child, depth - 1)


def is_run(path: Path) -> bool:
    """Whether a folder is a run's, if perhaps a damaged one."""
    return any((path / sign).exists() for sign in _SIGNS)


def _why_no_run(path: Path) -> str:
    if not path.exists():
        return "there is no such file or folder"
    if not path.is_dir():
        return "is a file; give the run's folder"
    if not any(path.iterdir()):
        return "is empty"
    return f"holds no run: no {', no '.join(_SIGNS)} here or in a folder below"
