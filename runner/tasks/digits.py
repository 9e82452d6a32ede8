"""Hand-written digits: 1,797 images of 8x8 pixels that lie inside scikit-learn, and a small convolutional network.

Source of the images: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import gzip
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.errors import TaskError
from runner.plan import Sizes
from runner.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

ITEMS, TRAIN_ITEMS, CLASSES = 1797, 1437, 10


class Digits(Task):
    """Which of ten digits an image shows.

    `width`: channels of the first convolution. `dropout`: before the last layer. `shift`: a training image is moved
    by up to that many pixels each way, at random.
    """

    def __init__(self, width: int = 32, dropout: float = 0.0, shift: int = 0):
        for name, value, kind in (("width", width, int), ("dropout", dropout, int | float), ("shift", shift, int)):
            if not isinstance(value, kind) or value < 0:
                raise TaskError(f"task.{name}: {value!r} should be a number that is not negative")
        self.width, self.dropout, self.shift = width, dropout, shift

    def model(self) -> nn.Module:
        from torch import nn

        w = self.width
        return nn.Sequential(
            nn.Conv2d(1, w, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * w * 16, w),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(w, CLASSES),
        )

    def train_data(self) -> Images:
        return Images(*_read(), slice(0, TRAIN_ITEMS), self.shift)

    def eval_data(self) -> Images:
        return Images(*_read(), slice(TRAIN_ITEMS, ITEMS), 0)

    def collate(self, items: list[Any]) -> tuple[Tensor, Tensor]:
        import torch

        images, labels = zip(*items, strict=True)
        return torch.from_numpy(np.stack(images)), torch.tensor(labels)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        from torch.nn.functional import cross_entropy

        images, labels = batch
        return cross_entropy(model(images), labels, reduction="sum"), len(labels)

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, float]]:
        images, labels = batch
        return {"accuracy": ((model(images).argmax(1) == labels).sum(), len(labels))}

    def sizes(self) -> Sizes:
        w = self.width
        convolutions = 9 * w + w + 9 * w * 2 * w + 2 * w
        return Sizes(items=TRAIN_ITEMS, parameters=convolutions + 32 * w * w + w + w * CLASSES + CLASSES)


class Images:
    """Images (1, 8, 8) in 0..1 as float32, with their labels; moved at random by up to `shift` pixels."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, part: slice, shift: int):
        self._images, self._labels, self._shift = images[part], labels[part].tolist(), shift

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = self._images[index]
        if self._shift:
            down, right = np.random.randint(-self._shift, self._shift + 1, 2)
            padded = np.pad(image, ((0, 0), (self._shift,) * 2, (self._shift,) * 2))
            top, left = self._shift - down, self._shift - right
            image = padded[:, top : top + 8, left : left + 8]
        return image, self._labels[index]


@cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 1, 8, 8) and labels (1797,), mixed by a fixed permutation.

    The file is read where it lies: importing scikit-learn's loader takes two seconds.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise TaskError("the digits lie inside scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(file, "rt") as rows:
        table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
    table = table[np.random.RandomState(0).permutation(len(table))]  # the writers come one after another in the file
    return table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].astype(np.int64)
