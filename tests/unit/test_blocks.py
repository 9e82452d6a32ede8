"""The parts of a model that are sharded by themselves."""

from __future__ import annotations

import pytest
from torch import nn

from runner.errors import TaskError
from runner.sync.blocks import blocks_of
from runner.task import Task, adopt


class Named(Task):
    """A task that names the parts of its model."""

    def __init__(self, *names: nn.Module):
        self._names = list(names)

    def shard(self, model: nn.Module) -> list[nn.Module]:
        return self._names


def found(model: nn.Module) -> list[nn.Module]:
    return blocks_of(adopt(Task()), model)


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8)


def test_repeated_children_are_blocks() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(3, 4), "layers": nn.ModuleList([layer(), layer()]), "head": nn.Linear(4, 3)}
    )
    assert found(model) == list(model["layers"])


def test_the_outermost_repetition_counts() -> None:
    pairs = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)))
    assert found(pairs) == list(pairs)


def test_what_is_there_once_or_has_no_parameters_is_no_block() -> None:
    assert found(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ReLU(), nn.LayerNorm(2))) == []


def test_shared_parameters_stay_where_all_can_use_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[2].weight = model[0].weight
    assert found(model) == [model[1]]


def test_a_module_that_is_used_twice_is_no_block() -> None:
    shared = nn.Linear(2, 2)
    assert found(nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared), nn.Sequential(nn.Linear(2, 2))])) != []
    assert shared not in found(nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)]))


def test_a_task_may_name_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert blocks_of(adopt(Named()), model) == []
    assert blocks_of(adopt(Named(model[1])), model) == [model[1]]
    for stranger in (nn.Linear(2, 2), model):
        with pytest.raises(TaskError, match="no part inside the model"):
            blocks_of(adopt(Named(stranger)), model)
