"""Modules of many shapes, as text: what `test_targets.py` looks names up in, and then imports."""

from __future__ import annotations

METHODS = """
    def model(self): ...
    def train_data(self): ...
    def loss(self, model, batch): ...
"""

LOSSLESS = """
    def model(self): ...
    def train_data(self): ...
"""

SOURCES = {
    "mine/__init__.py": """
from .plain import Plain, Plain as Renamed
from . import plain as module
Assigned = module.Plain
try:
    from nowhere import Perhaps
except ImportError:
    from .plain import Plain as Perhaps
SIZE = 3
if SIZE > 3:
    Never = Renamed
""",
    "mine/plain.py": f"""
import dataclasses
import functools
from abc import ABC
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

T = TypeVar("T")

class Plain:
    def __init__(self, width, depth=2, *, name="x"): ...
{METHODS}
class Inherits(Plain, ABC):
    pass

class OfSome(Inherits, Generic[T]):
    more = 1

class Nothing:
{METHODS}
class Lossless:
    def model(self): ...
    def train_data(self): ...

class SetsIt(Lossless):
    def __init__(self):
        self.loss = print

class Anything(Plain):
    def __init__(self, depth=1, **rest):
        super().__init__(**rest)

@dataclass
class Data(Nothing):
    width: int
    depth: int = 2
    parts: list = field(default_factory=list)
    count: ClassVar[int] = 0
    made: int = field(init=False, default=1)

@dataclasses.dataclass(eq=True)
class MoreData(Data):
    size: "int" = field(kw_only=True)

@dataclass(init=False)
class OwnInit(Nothing):
    width: int

def keeps(thing):
    return thing

def opens(kind):
    def make(**anything):
        return Plain(1)
    return make

@opens
class Decorated(Plain):
    pass

class Meta(type):
    def __call__(cls, **anything):
        return super().__call__(1)

class ByMeta(Plain, metaclass=Meta):
    pass

class ByNew(Plain):
    def __new__(cls, **anything):
        return Plain(1)

class Patched(Nothing):
    pass

def patched(self, colour):
    pass
Patched.__init__ = patched

def make(width, colour="red"):
    return Plain(width)

partial = functools.partial(Plain, width=3)

@keeps
def kept(width):
    return Plain(width)

def added():
    global Added
    Added = Plain
added()
""",
    "mine/nearly.py": "from .plain import Plian\n",
    "mine/broken.py": "class Broken:\n    def model(self:\n        pass\n",
    "mine/odd.py": "class Odd:\n    pass\nreturn 3\n",
    "filled/__init__.py": "from . import base, late\nbase.Late = late.Late\nbase.Base.loss = print\n",
    "filled/base.py": "class Base:\n    def model(self): ...\n    def train_data(self): ...\n",
    "filled/late.py": f"class Late:{METHODS}\n",
    "loose.py": "from mine.plain import *\n\nclass Own:\n    pass\n",
    "lazy.py": "def __getattr__(name):\n    import mine.plain\n    return getattr(mine.plain, name)\n",
    "written.py": "import mine.plain\nfor name in ('Plain',):\n    globals()[name] = getattr(mine.plain, name)\n",
    "deep/er/est.py": f"class Deepest:{METHODS}\n",
    "nested.py": f"class Nested:\n    def __init__(self, loss_of, **rest): ...\n{METHODS}",
}  # fmt: skip

# Tasks that get what they need from elsewhere than their own statements.
GIVEN = {
    "given/__init__.py": "from . import core, late\n_T = late.Late\ncore.Task = _T\ncore.Made = _T\n",
    "given/core.py": "Task = None\nclass Made: ...\nclass Kept: ...\n",
    "given/late.py": f"class Late:{METHODS}\n",
    "given/decorators.py": """
import typing

def add_to_class(cls):
    return lambda function: setattr(cls, function.__name__, function)

def patch(function):
    kind = typing.get_type_hints(function)["self"]
    setattr(kind, function.__name__, function)
""",
    "given/by_decorator.py": f"""
from .decorators import add_to_class, patch

class Added:{LOSSLESS}
@add_to_class(Added)
def loss(self, model, batch): ...

class Made(Added): ...
@add_to_class(Made)
def __init__(self, colour): ...

class Annotated:{LOSSLESS}
@patch
def loss(self: Annotated, model, batch): ...

class Quoted:{LOSSLESS}
@patch
def loss(self: "Quoted", model, batch): ...
""",
    "given/by_name.py": f"""
def loss(self, model, batch): ...
def init(self, colour): ...

class Looped:{LOSSLESS}
class Other:{LOSSLESS}
for cls in (Looped, Other):
    cls.loss = loss

class Renamed:{LOSSLESS}
T = Renamed
U = T
U.loss = loss
U.__init__ = init

class Reached:{LOSSLESS}
type(Reached()).loss = loss

def attach(task):
    task.loss = print

class Attached:
    def __init__(self):
        attach(self)
{LOSSLESS}
class Indirect:
    def __init__(self):
        me = self
        attach(me)
{LOSSLESS}
class ByClass:
    def __init__(self):
        attach(self.__class__)
{LOSSLESS}""",
    "given/twice.py": f"""
class Base:
    def __init__(self, colour): ...
{METHODS}
class Task(Base): ...

class Base:
    def __init__(self, width): ...
""",
    "given/modules.py": f"""
from torch import nn

class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self._modules["loss"] = nn.MSELoss()
{LOSSLESS}
class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("loss", nn.MSELoss())
{LOSSLESS}
class Set(nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "loss", nn.MSELoss())
{LOSSLESS}""",
    "given/fields.py": f"""
import typing as t
from dataclasses import KW_ONLY as K, dataclass
from typing import ClassVar as CV

Also = CV

@dataclass
class Plain:
    count: CV[int]
    more: t.ClassVar
    text: "CV[int]"
    also: Also[int]
    _: K
    width: int | None
{METHODS}""",
    "beside.py": f"""
class Task:{LOSSLESS}
class Deep:{LOSSLESS}
import patches
""",
    "patches.py": "import beside\nfrom patched import more\nbeside.Task.loss = print\n",
    "patched/more.py": "from beside import Deep as D\nD.loss = print\n",
    "übung.py": f"class Aufgabe_ß:{METHODS}\n",
    "plainly.py": f"""
from dataclasses import dataclass
from typing import ClassVar as CV

class Task:
    def __init__(self, width: "Task | int"):
        super(Task, self).__init__()
        self.other: Task | None = None
        self.alone = isinstance(width, (Task, int)) or width is Task
{LOSSLESS}
class More(Task): ...

Same = More

@dataclass
class Fields:
    count: CV[int]
    width: int
{METHODS}
def of(task: Task) -> Task:
    return Task(task)

if __name__ == "__main__":
    print(Task, of(Task(1)))
""",
}
SOURCES |= GIVEN
