"""Batches for the passes of a process: from item ids to tensors on the device, every item under its own stream."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from runner.backend import to_device
from runner.errors import TaskError
from runner.keys import derive
from runner.seeding import seed_generators

Request = tuple[int, tuple[int, ...]]  # (epoch, item ids)

_PROBE = 1  # the stream under which a dataset is watched for drawing numbers


def check_dataset(dataset: Any, what: str) -> int:
    """The number of items. Raises TaskError for anything but a map-style dataset with a length."""
    if dataset is None:
        raise TaskError(
            f"{what} returned None; it must return a map-style dataset (one with __len__ and __getitem__): a list will do"
        )
    if isinstance(dataset, Mapping):
        raise TaskError(
            f"{what} returned {type(dataset).__name__}, whose items have names; an item's index is its id: return a list(...) of the values"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TaskError(
            f"{what} returned the iterable dataset {type(dataset).__name__}, which has no items to name: which process "
            "and which window gets which item could not be told. Return a map-style dataset (one with __len__ and "
            "__getitem__); a list(...) of it is one"
        )
    if not hasattr(dataset, "__len__"):
        raise TaskError(f"{what} returned {type(dataset).__name__}, which has no length: a dataset needs __len__")
    try:
        return len(dataset)
    except TypeError as error:  # what __len__ returned is no number
        raise TaskError(
            f"{what} returned {type(dataset).__name__}, whose __len__ gives no number of items: {error}"
        ) from error


class Items:
    """A dataset whose items draw from streams of their own, (seed, purpose, epoch, id), where `exact`.

    Starting a stream for each item costs more than reading most items, so a dataset is watched instead: all
    generators are started from a known point, the items are read, and the generators looked at. If none has been
    used there is nothing to do. The first time that one has, the items are read again, each under its own
    stream, and so are all later ones.
    """

    def __init__(self, dataset: Any, collate: Any, seed: int, purpose: str, exact: bool):
        self._dataset, self._collate = dataset, collate
        self._seed, self._purpose, self._exact = seed, purpose, exact
        self._draws = False
        self._many = getattr(dataset, "__getitems__", None)
        self.collated_by = getattr(collate, "__qualname__", "collate")

    def __getitem__(self, request: Request) -> Any:
        epoch, ids = request
        if not self._exact:
            return self._batch(ids, self._read(ids))
        if not self._draws:
            seed_generators(_PROBE)
            batch = self._batch(ids, self._read(ids))
            if _untouched():
                return batch
            self._draws = True
        return self._batch(ids, self._read_each(epoch, ids))

    def _batch(self, ids: tuple[int, ...], items: list[Any]) -> Any:
        try:
            return self._collate(items)
        except Exception as error:
            error.add_note(f"while {self.collated_by} made a batch of the items {list(ids)}")
            raise

    def _read_each(self, epoch: int, ids: tuple[int, ...]) -> list[Any]:
        items: list[Any] = []
        for item in ids:
            seed_generators(derive(self._seed, self._purpose, epoch, item))
            items.extend(self._read((item,)))
        return items

    def _read(self, ids: tuple[int, ...]) -> list[Any]:
        try:
            if self._many is not None:
                return list(self._many(list(ids)))
            return [self._dataset[i] for i in ids]
        except StopIteration:
            raise TaskError(f"the dataset ended early: reading the items {list(ids)} raised StopIteration") from None
        except Exception as error:
            error.add_note(f"while reading the items {list(ids)} of {type(self._dataset).__name__}")
            raise


def _first_draws() -> tuple[float, float, float]:
    return random.random(), np.random.random_sample(), torch.rand(()).item()


_EXPECTED: list[tuple[float, float, float]] = []


def _untouched() -> bool:
    """Whether no generator has been used since it was started from the probe: the next draws are the first ones."""
    found = _first_draws()
    if not _EXPECTED:
        seed_generators(_PROBE)
        _EXPECTED.append(_first_draws())
    return found == _EXPECTED[0]


def load(
    items: Items,
    requests: Iterable[Request],
    workers: int,
    seed: int,
    device: torch.device,
    floats: torch.dtype | None,
    rank: int,
) -> Generator[Any, None, None]:
    """The batches of `requests` in order, on the device; `floats` is what their floating-point tensors become.

    With `workers`, as many processes read ahead: one set of them for all the requests.
    """
    move = device.type != "cpu" or floats is not None
    source = _in_process(items, requests) if workers == 0 else _by_workers(items, requests, workers, seed, device, rank)
    for batch in source:
        if batch is None:  # which would be taken for a process that has nothing to do
            raise TaskError(f"{items.collated_by} returned None; it must return the batch that loss is given")
        yield to_device(batch, device, floats) if move else batch


def _in_process(items: Items, requests: Iterable[Request]) -> Iterator[Any]:
    for request in requests:
        yield items[request]


def _by_workers(
    items: Items, requests: Iterable[Request], workers: int, seed: int, device: torch.device, rank: int
) -> Iterator[Any]:
    start = _WorkerStart(derive(seed, "loader", rank))
    # A rank comes from a fork server and would start one more for its loaders; forked, they are there at once.
    forks = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    loader: Iterator[Any] = iter(
        DataLoader(
            items,  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Requests(requests),
            num_workers=workers,
            worker_init_fn=start,
            generator=torch.Generator(),  # the loader's own draws must not touch training's stream
            pin_memory=device.type == "cuda",
            multiprocessing_context=forks,
        )
    )
    yield from loader


class _Requests:
    """A sampler over requests made as they are asked for; torch only iterates over it."""

    def __init__(self, requests: Iterable[Request]):
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class _WorkerStart:
    """Starts a loader worker's generators, different in each; `exact` starts them again for every item."""

    def __init__(self, seed: int):
        self._seed = seed

    def __call__(self, worker: int) -> None:
        seed_generators(derive(self._seed, "worker", worker))
