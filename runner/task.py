"""What a task is: the model, the data and the loss of an experiment; everything that a setup must not change.

Subclass `Task`, or write any class with these methods; only `model`, `train_data` and `loss` are needed.
This module imports no torch, so that a task's sizes can be planned without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from runner.errors import TaskError
from runner.plan import Sizes

if TYPE_CHECKING:
    from torch import Tensor, nn


class Items(Protocol):
    """A map-style dataset: torch's Dataset with a length, a list, anything with these two methods."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


REQUIRED = ("model", "train_data", "loss")


class Task:
    """An experiment's model, data and loss. One instance is made on every process, under the same seed."""

    def model(self) -> nn.Module:
        """The model, on the CPU, freshly initialized. Called once, under a stream of its own."""
        raise NotImplementedError

    def train_data(self) -> Items:
        """The training items: map-style, with a length; an item's index is its id. The same on every process."""
        raise NotImplementedError

    def eval_data(self) -> Items | None:
        """The items to evaluate on, or None."""
        return None

    def collate(self, items: list[Any]) -> Any:
        """A batch of items. By default what torch's DataLoader does."""
        from torch.utils.data import default_collate

        return default_collate(items)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | float]:
        """The sum of the losses of a batch (a tensor without dimensions), and the weight that they are to be averaged over.

        The weight is the number of items, or of tokens, or whatever the loss is a mean of. Return the sum,
        not the mean: the mean is taken over the whole window, however it is split.
        """
        raise NotImplementedError

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor, Tensor | float]]:
        """Further sums with their weights, by name, for evaluation: {"accuracy": (correct, items)}."""
        return {}

    def shard(self, model: nn.Module) -> Sequence[nn.Module] | None:
        """The parts of the model that fsdp is to gather one at a time; each must be called as a module, on every
        process alike. None: the ones that it finds itself (docs/sharding.md)."""
        return None

    def sizes(self) -> Sizes | None:
        """Items and gradient elements where they are known without loading anything, for `plan`; else None."""
        return None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The methods of a task, its own or `Task`'s; `name` is that of its class."""

    name: str
    model: Callable[[], nn.Module]
    train_data: Callable[[], Items]
    eval_data: Callable[[], Items | None]
    collate: Callable[[list[Any]], Any]
    loss: Callable[[nn.Module, Any], tuple[Tensor, Tensor | float]]
    metrics: Callable[[nn.Module, Any], Mapping[str, tuple[Tensor, Tensor | float]]]
    shard: Callable[[nn.Module], Sequence[nn.Module] | None]


def adopt(candidate: Any) -> Adopted:
    """`candidate` as a task: what it lacks and need not have is taken from `Task`.

    Raises TaskError if it lacks `model`, `train_data` or `loss`.
    """
    name, default = type(candidate).__name__, Task()
    missing = [method for method in REQUIRED if not callable(getattr(candidate, method, None))]
    if missing:
        lacks = " and no method ".join(missing)
        raise TaskError(f"the task {name} has no method {lacks}; a task needs {', '.join(REQUIRED)}")
    methods = (f.name for f in fields(Adopted) if f.name != "name")
    found = {method: getattr(candidate, method, getattr(default, method)) for method in methods}
    for method, value in found.items():
        if not callable(value):
            raise TaskError(f"{name}.{method} is {_describe(value)} and no method; without one, Task's own is taken")
    return Adopted(name, **found)


def check_loss(result: Any, task: str) -> tuple[Tensor, Tensor | float]:
    """What the `loss` of the task of that name returned, if it is a pair (sum of losses, weight). Raises TaskError otherwise."""
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and getattr(result[0], "ndim", None) == 0
        and getattr(result[0], "requires_grad", None) in ((True,) if _grad_enabled() else (True, False))
        and not result[0].is_complex()
        and _is_number(result[1])
    ):
        return result
    raise TaskError(
        f"{task}.loss returned {_describe(result)}; it must return the pair (sum of the losses, weight): "
        "a tensor without dimensions that has a gradient, and the number of items or tokens that it is summed over"
    )


def check_metrics(result: Any, task: str) -> Mapping[str, tuple[Tensor | float, Tensor | float]]:
    """What the `metrics` of the task of that name returned, if it is {name: (sum, weight)}. Raises TaskError otherwise."""
    if not isinstance(result, Mapping):
        raise TaskError(f"{task}.metrics returned {_describe(result)}; it must return {{name: (sum, weight)}}")
    for name, pair in result.items():
        if name in ("loss", "update", "epoch", "weight"):
            raise TaskError(f"{task}.metrics may not name one '{name}': evals.jsonl has a column of that name")
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_number, pair))):
            raise TaskError(f"{task}.metrics returned {_describe(pair)} as '{name}'; it must be the pair (sum, weight)")
    return result


def _is_number(value: Any) -> bool:
    """Whether `value` is a number, or a tensor of one."""
    return isinstance(value, Real) or getattr(value, "numel", lambda: 0)() == 1


def _grad_enabled() -> bool:
    import torch

    return torch.is_grad_enabled()


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(_describe(v) for v in value)})"
    if hasattr(value, "shape") and hasattr(value, "requires_grad"):
        gradient = "" if not _grad_enabled() else " with a gradient" if value.requires_grad else " without a gradient"
        kind = "complex " if value.is_complex() else ""
        return f"a {kind}tensor of shape {tuple(value.shape)}{gradient}"
    return f"{type(value).__name__}" if value is not None else "None"
