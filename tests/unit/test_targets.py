"""What a `_target_` names is looked up in its source, before anything starts: what is certain to fail is told, and nothing else.

Every case is held against what happens when the object is really made: whatever is refused must fail there.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.build import build
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.errors import Problem
from runner.schema import Config, CustomOptim, CustomSchedule, Task
from runner.targets.check import problems_of
from runner.targets.modules import Undecided
from runner.targets.names import find
from runner.targets.parameters import parameters
from runner.task import adopt
from tests.unit.target_sources import SOURCES


@pytest.fixture(scope="module")
def base() -> Config:
    return compose_one(parse([])).config


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sources above in the working folder and on the import path, and nothing of them imported afterwards."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {n.partition("/")[0].removesuffix(".py") for n in SOURCES}:
            del sys.modules[name]


def told(base: Config, target: Any, keys: dict[str, Any]) -> list[Problem]:
    """What is said about a task, having imported nothing of it."""
    before = set(sys.modules)
    found = list(problems_of(base.model_copy(update={"task": Task.model_validate({"_target_": target, **keys})})))
    assert set(sys.modules) - before == set()
    return found


def fails(target: str, keys: dict[str, Any]) -> bool:
    """Whether the task really cannot be made."""
    try:
        adopt(build(target, **keys))
    except Exception:
        return True
    return False


WIDTH = {"width": 1}
# target, keys, and for each line the key at fault with what the line must tell
WRONG: list[tuple[str, dict[str, Any], list[tuple[str, list[str]]]]] = [
    ("mien.plain.Plain", WIDTH, [("task._target_", ["no module mien in", "task._target_=mine.plain.Plain?"])]),
    ("elsewhere.Plain", WIDTH, [("task._target_", ["no module elsewhere in", "elsewhere.py, or install it"])]),
    ("mine.plian.Plain", WIDTH, [("task._target_", ["no module mine.plian", "task._target_=mine.plain.Plain?", "nearly, odd, plain"])]),
    ("mine.plain.Plian", WIDTH, [("task._target_", ["mine/plain.py", "no class or function Plian", "task._target_=mine.plain.Plain?", "Inherits"])]),
    ("mine.plain.Plain.Inner", WIDTH, [("task._target_", ["no module mine.plain.Plain", "is a file"])]),
    ("mine.plain", WIDTH, [("task._target_", ["mine.plain is a module", "Plain, Inherits"])]),
    ("mine.SIZE", WIDTH, [("task._target_", ["mine/__init__.py, line 9)", "is a value"])]),
    ("mine.nearly.Plian", WIDTH, [("task._target_", ["mine/nearly.py, line 1, imports Plian", "no class or function Plian"])]),
    ("mine.broken.Broken", {}, [("task._target_", ["mine/broken.py, line 2", "def model(self:"])]),
    ("mine.odd.Odd", {}, [("task._target_", ["mine/odd.py, line 3", "outside function"])]),
    ("deep.er.Deepest", {}, [("task._target_", ["deep.er", "no class or function Deepest"])]),
    ("deep.err.Deepest", {}, [("task._target_", ["no module deep.err", "task._target_=deep.er.Deepest?"])]),
    ("mine.plain.Plain", {"widht": 1}, [("task.widht", ["is not a key of mine.plain.Plain (mine/plain.py, line 10)", "task.width?", "depth, name, width"]),
                                        ("task._target_", ["cannot be made without width", "task.width=..."])]),
    ("mine.plain.OfSome", {}, [("task._target_", ["without width"])]),
    ("mine.plain.Nothing", WIDTH, [("task.width", ["Its keys are: none"])]),
    ("mine.Renamed", {}, [("task._target_", ["mine/plain.py, line 10", "without width"])]),
    ("mine.Assigned", {}, [("task._target_", ["without width"])]),
    ("mine.plain.Lossless", {}, [("task._target_", ["no method loss", "model, train_data, loss"])]),
    ("mine.plain.Data", {"count": 1}, [("task.count", ["depth, parts, width"]), ("task._target_", ["without width"])]),
    ("mine.plain.Data", {"width": 1, "made": 1}, [("task.made", ["depth, parts, width"])]),
    ("mine.plain.MoreData", WIDTH, [("task._target_", ["without size"])]),
    ("mine.plain.make", {"width": 1, "color": 1}, [("task.color", ["task.colour?"])]),
    ("nested.Nested", {"loss_of": {"_target_": "mine.plain.Plian"}, "parts": [{"_target_": "mine.plain.make", "wide": 1}]},
     [("task.loss_of._target_", ["task.loss_of._target_=mine.plain.Plain?"]), ("task.parts.0.wide", ["task.parts.0.width?"]),
      ("task.parts.0._target_", ["without width"])]),
    ("nested.Nested", {"loss_of": {"_target_": "Bare"}, "a": {"b": {"_target_": 3}}},
     [("task.loss_of._target_", ["'Bare'", "my_module.MyClass"]), ("task.a.b._target_", ["3 does not name"])]),
    ("plainly.Task", {}, [("task._target_", ["no method loss"]), ("task._target_", ["without width"])]),
    ("plainly.Same", {"widht": 1}, [("task._target_", ["no method loss"]), ("task.widht", ["task.width?"]), ("task._target_", ["without width"])]),
    ("plainly.Fields", {"count": 1}, [("task.count", ["Its keys are: width"]), ("task._target_", ["without width"])]),
    ("given.fields.Plain", {"count": 1}, [("task.count", ["Its keys are: width"]), ("task._target_", ["without width"])]),
    ("given.core.Kept", {}, [("task._target_", ["no method model"])]),
    ("übung.Aufgabe", {}, [("task._target_", ["task._target_=übung.Aufgabe_ß?"])]),
]  # fmt: skip


@pytest.mark.parametrize(("target", "keys", "lines"), WRONG)
def test_what_is_certain_to_fail_is_told(
    target: str, keys: dict[str, Any], lines: list[tuple[str, list[str]]], base: Config
) -> None:
    found = told(base, target, keys)
    assert [p.key for p in found] == [key for key, _ in lines], found
    for problem, (_, texts) in zip(found, lines, strict=True):
        for text in texts:
            assert text in str(problem)
    assert fails(target, keys), "it was refused wrongly"


RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("mine.plain.Plain", {"width": 1, "name": "y"}),
    ("mine.Renamed", WIDTH),
    ("mine.Assigned", {"width": 1, "depth": 3}),
    ("mine.Perhaps", WIDTH),
    ("mine.plain.OfSome", WIDTH),
    ("mine.plain.SetsIt", {}),
    ("mine.plain.Anything", {"width": 1, "name": "y"}),
    ("mine.plain.Data", {"width": 1, "parts": [1]}),
    ("mine.plain.MoreData", {"width": 1, "size": 2, "depth": 3}),
    ("mine.plain.Decorated", {"colour": 1}),
    ("mine.plain.ByMeta", {"colour": 1}),
    ("mine.plain.ByNew", {"colour": 1}),
    ("mine.plain.Patched", {"colour": 1}),
    ("mine.plain.make", WIDTH),
    ("mine.plain.partial", {}),
    ("mine.plain.kept", WIDTH),
    ("mine.plain.Added", WIDTH),
    ("filled.base.Late", {}),
    ("filled.base.Base", {}),
    ("loose.Plain", WIDTH),
    ("lazy.Plain", WIDTH),
    ("written.Plain", WIDTH),
    ("deep.er.est.Deepest", {}),
    ("nested.Nested", {"loss_of": {"_target_": "mine.Renamed", "width": 2}}),
    ("runner.tasks.digits.Digits", {"width": 8}),
    ("given.core.Task", {}),
    ("given.core.Made", {}),
    ("given.by_decorator.Added", {}),
    ("given.by_decorator.Made", {"colour": 1}),
    ("given.by_decorator.Annotated", {}),
    ("given.by_decorator.Quoted", {}),
    ("given.by_name.Looped", {}),
    ("given.by_name.Renamed", {"colour": 1}),
    ("given.by_name.Reached", {}),
    ("given.by_name.Attached", {}),
    ("given.by_name.Indirect", {}),
    ("given.by_name.ByClass", {}),
    ("given.twice.Task", {"colour": 1}),
    ("given.modules.Listed", {}),
    ("given.modules.Named", {}),
    ("given.modules.Set", {}),
    ("given.fields.Plain", WIDTH),
    ("beside.Task", {}),
    ("beside.Deep", {}),
    ("übung.Aufgabe_ß", {}),
]


@pytest.mark.parametrize(("target", "keys"), RIGHT)
def test_a_task_that_can_be_made_is_not_refused(target: str, keys: dict[str, Any], base: Config) -> None:
    """The control, with tasks of many shapes."""
    assert told(base, target, keys) == []
    assert not fails(target, keys)


UNTOLD: list[tuple[str, dict[str, Any]]] = [
    ("mine.Never", {}),
    ("mine.plain.OwnInit", {"wide": 1}),
    ("loose.Plian", {}),
    ("lazy.Plian", {}),
    ("mine.plain.partial", {"wide": 1}),
]


@pytest.mark.parametrize(("target", "keys"), UNTOLD)
def test_what_the_source_does_not_tell_is_left_to_the_worker(target: str, keys: dict[str, Any], base: Config) -> None:
    assert told(base, target, keys) == []
    assert fails(target, keys)


@pytest.mark.parametrize(
    ("section", "target", "keys", "lines"),
    [
        ("optim", "torch.optim.RMSprop", {"alpha": 0.9}, {}),
        ("optim", "torch.optim.RMSprop", {"alhpa": 0.9}, {"optim.alhpa": "optim.alpha?"}),
        ("optim", "torch.optim.RMSporp", {}, {"optim._target_": "optim._target_=torch.optim.RMSprop?"}),
        ("optim", "tests.unusual_tasks.Head", {}, {}),
        ("optim", "mine.plain.Plain", {}, {"optim._target_": "does not take lr"}),
        ("schedule", "torch.optim.lr_scheduler.ExponentialLR", {"gamma": 0.9}, {}),
        ("schedule", "torch.optim.lr_scheduler.ExponentialLR", {}, {"schedule._target_": "without gamma"}),
        ("schedule", "tests.probe_tasks.halves", {"every": 3}, {}),
        ("schedule", "tests.probe_tasks.halves", {"evry": 3}, {"schedule.evry": "schedule.every?"}),
    ],
)
def test_optimizers_and_schedules_are_looked_up_alike(
    section: str, target: str, keys: dict[str, Any], lines: dict[str, str], base: Config
) -> None:
    own: dict[str, Any] = {"lr": 0.1, "clip": None} if section == "optim" else {"warmup": 0}
    kind = CustomOptim if section == "optim" else CustomSchedule
    made = kind.model_validate({"name": "custom", "_target_": target, **own, **keys})
    found = {p.key: str(p) for p in problems_of(base.model_copy(update={section: made}))}
    assert found.keys() == lines.keys(), found
    assert all(text in found[key] for key, text in lines.items())


def test_another_machine_may_have_the_module(base: Config) -> None:
    def of(target: str) -> list[Problem]:
        task = Task.model_validate({"_target_": target})
        return list(problems_of(base.model_copy(update={"task": task}), here=False))

    assert of("elsewhere.Plain") == []
    assert [p.key for p in of("mine.plian.Plain")] == ["task._target_"]


def test_parameters_are_those_that_python_sees() -> None:
    """Of every class of many modules, as they were written by others."""
    agree = 0
    for name in ("argparse", "logging", "logging.handlers", "rich.progress", "rich.table", "hydra.core.plugins", "torch.nn.modules.conv",
                 "torch.nn.modules.loss", "torch.optim", "torch.utils.data.sampler", "torch.optim.lr_scheduler"):  # fmt: skip
        for attribute, cls in vars(importlib.import_module(name)).items():
            if not inspect.isclass(cls):
                continue
            try:
                takes = parameters(find(f"{name}.{attribute}"))
            except Undecided:
                continue
            kinds = inspect.signature(cls).parameters.values()
            named = [p for p in kinds if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
            assert set(takes.names) == {p.name for p in named}, cls
            assert takes.required == {p.name for p in named if p.default is p.empty}, cls
            agree += 1
    assert agree > 60
