"""Modules of many shapes, as text: what `test_targets.py` looks names up in, and then imports."""

from __future__ import annotations

METHODS = """
    def model(self): ...
    def train_data(self): ...
    def loss(self, model, batch): ...
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
