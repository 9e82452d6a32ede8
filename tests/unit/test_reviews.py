"""The task of reviews: its counts are right before torch is loaded, its data the same everywhere, and it can be learned from."""

from __future__ import annotations

import numpy as np
import pytest

from runner.tasks.reviews import PAD, START, Reviews


@pytest.mark.parametrize("arguments", [{}, {"width": 32, "layers": 1, "heads": 2, "vocabulary": 100, "length": 12}])
def test_its_sizes_are_those_of_the_model_and_the_data(arguments: dict[str, int]) -> None:
    task = Reviews(**arguments)
    sizes = task.sizes()
    assert sizes.parameters == sum(p.numel() for p in task.model().parameters())
    assert sizes.items == len(task.train_data())


def test_its_data_do_not_depend_on_any_stream() -> None:
    np.random.seed(1)
    first = Reviews(items=20).train_data()
    np.random.seed(2)
    second, other = Reviews(items=20).train_data(), Reviews(items=20).eval_data()
    assert all(np.array_equal(a, b) and la == lb for (a, la), (b, lb) in zip(first, second, strict=True))
    assert not np.array_equal(first[0][0], other[0][0]), "the control: other reviews are told apart"


def test_what_fills_a_row_up_changes_nothing() -> None:
    import torch

    task = Reviews(width=32, layers=1, heads=2, vocabulary=100, length=12, dropout=0.0)
    model = task.model().eval()
    short = torch.tensor([[START, 5, 6, 7]])
    filled = torch.tensor([[START, 5, 6, 7, PAD, PAD]])
    other = torch.tensor([[START, 5, 6, 7, 8, 9]])
    assert torch.allclose(model(short), model(filled), atol=1e-6)
    assert not torch.allclose(model(short), model(other), atol=1e-6)


def test_most_opinions_of_a_review_agree_with_its_label_and_not_all() -> None:
    found = [(row[1:][row[1:] != PAD] % 3, label) for row, label in Reviews(items=400).train_data()]
    agree = np.mean([(opinion == label).sum() / (opinion != 2).sum() for opinion, label in found])
    assert 0.7 < agree < 0.97
    told = np.mean([((opinion == 1).sum() > (opinion == 0).sum()) == bool(label) for opinion, label in found])
    assert told > 0.95, "so that counting them tells the label"
