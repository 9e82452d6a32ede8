"""activation_checkpoint: the same numbers from less memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runner.errors import TaskError
from runner.sync.blocks import checkpoint_blocks
from runner.task import Task, adopt


def gradients(checkpointed: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True) for _ in range(3)))
    if checkpointed:
        checkpoint_blocks(adopt(Task()), model)
    torch.manual_seed(1)
    (model(torch.ones(2, 4, 8)) ** 2).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_same_gradients_with_dropout() -> None:
    plain, again = gradients(False), gradients(True)
    assert len(plain) == len(again) > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_control() -> None:
    """Other draws in the second forward would be seen: they give other gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True) for _ in range(3)))
    torch.manual_seed(2)
    (model(torch.ones(2, 4, 8)) ** 2).sum().backward()
    other = [p.grad for p in model.parameters()]
    assert not all(torch.equal(a, b) for a, b in zip(gradients(False), other, strict=True) if b is not None)


def test_a_model_without_repeated_parts() -> None:
    with pytest.raises(TaskError, match="has no repeated parts"):
        checkpoint_blocks(adopt(Task()), nn.Linear(2, 2))
