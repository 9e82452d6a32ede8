"""Windows: every item exactly once, the same micro-batches for any number of processes, equal numbers of reductions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from runner.choices import Remainder
from runner.window import Window, Windows, epoch_order, windows_per_epoch

ORDER_OF_SEED_42 = [1, 6, 5, 8, 3, 2, 7, 9, 0, 4]
REMAINDERS = list(Remainder)
SPLITS = [(1, 8, 1), (2, 4, 1), (4, 2, 1), (8, 1, 1), (1, 4, 2), (2, 2, 2), (4, 1, 2), (3, 2, 3), (5, 1, 2)]


def windows(
    items: int, processes: int, accum: int, per_device: int, remainder: Remainder, epochs: int = 1, **changes: object
) -> Windows:
    observed = processes * accum * per_device
    updates = windows_per_epoch(items, observed, remainder) * epochs
    values = {"shuffle": True, "seed": 7, **changes}
    return Windows(items, per_device, accum, observed, updates, remainder, **values)  # type: ignore[arg-type]


def seen(window: Window, processes: int, every: bool) -> list[int]:
    """The items of a window as its processes take them, rank after rank."""
    return [i for rank in range(processes) for m in window.passes(rank, every) for i in m.ids]


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(("processes", "accum", "per_device"), SPLITS)
@pytest.mark.parametrize("items", [1, 2, 7, 8, 9, 16, 23, 50])
def test_passes_cover_a_window_once_in_order(
    items: int, processes: int, accum: int, per_device: int, every: bool
) -> None:
    for window in windows(items, processes, accum, per_device, Remainder.keep, epochs=2):
        assert seen(window, processes, every) == window.ids.tolist()


@pytest.mark.parametrize(("processes", "accum", "per_device"), SPLITS)
@pytest.mark.parametrize("items", [1, 2, 7, 8, 9, 16, 23, 50])
def test_processes_reduce_equally_often(items: int, processes: int, accum: int, per_device: int) -> None:
    """A rank with a pass too few would be waited for, for ever. The last pass, and only it, is marked."""
    for window in windows(items, processes, accum, per_device, Remainder.keep):
        passes = [window.passes(rank, True) for rank in range(processes)]
        assert len({len(p) for p in passes}) == 1, "one reduction in every pass"
        once = [window.passes(rank, False) for rank in range(processes)]
        for own in passes + once:
            assert [m.last for m in own] == [False] * (len(own) - 1) + [True]
        for own in once:
            assert len(own) >= 1, "everybody takes part in the one reduction of a window"
            assert all(m.ids for m in own) or len(own) == 1, "with no pass that is for nothing"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("items", [3, 16, 21])
def test_micro_batches_do_not_depend_on_the_split(items: int, every: bool) -> None:
    """At equal per_device, micro-batch i holds the same items and has the same index, whoever computes it."""

    def of(processes: int, accum: int) -> list[tuple[int, int, tuple[int, ...]]]:
        return [
            (w.update, m.index, m.ids)
            for w in windows(items, processes, accum, 2, Remainder.keep, epochs=2)
            for rank in range(processes)
            for m in w.passes(rank, every)
            if m.ids
        ]

    assert of(1, 4) == of(2, 2) == of(4, 1)
    assert [i for i, _ in enumerate(of(1, 4))] and {index for _, index, _ in of(1, 4)} == set(
        range(min(4, -(-items // 2)))
    )


@pytest.mark.parametrize(
    ("items", "observed", "remainder"),
    [c for c in product([1, 4, 10, 12], [4], REMAINDERS) if c[::2] != (1, Remainder.drop)],
)
def test_items_of_an_epoch(items: int, observed: int, remainder: Remainder) -> None:
    """keep: every item once; drop: whole windows only; pad: whole windows, filled from the epoch's start."""
    made = list(windows(items, 1, observed, 1, remainder, epochs=2))
    for epoch in (1, 2):
        of_epoch = [w for w in made if w.epoch == epoch]
        ids = [i for w in of_epoch for i in w.ids.tolist()]
        order = epoch_order(items, epoch, 7, True).tolist()
        expected = {
            Remainder.keep: order,
            Remainder.drop: order[: items // observed * observed],
            Remainder.pad: (order * observed)[: -(-items // observed) * observed],
        }[remainder]
        assert ids == expected
        assert len(of_epoch) == windows_per_epoch(items, observed, remainder)
        assert [w.first_of_epoch for w in of_epoch] == [i == 0 for i in range(len(of_epoch))]
        assert [w.last_of_epoch for w in of_epoch] == [i == len(of_epoch) - 1 for i in range(len(of_epoch))]
    assert [w.update for w in made] == list(range(1, len(made) + 1))


@pytest.mark.parametrize("updates", [1, 3, 4, 7])
def test_a_budget_ends_within_an_epoch(updates: int) -> None:
    made = list(Windows(10, 1, 4, 4, updates, Remainder.keep, True, 7))
    assert len(made) == updates
    assert made[-1].epoch == 1 + (updates - 1) // 3


def test_order_is_a_permutation_of_seed_and_epoch() -> None:
    orders = {(seed, epoch): tuple(epoch_order(50, epoch, seed, True)) for seed in (0, 1, 2**62) for epoch in (1, 2, 3)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == 9
    assert epoch_order(50, 2, 1, False).tolist() == list(range(50))


def test_order_is_kept_for_ever() -> None:
    """Another order would make old runs incomparable with new ones: a change here is a change of every experiment."""
    assert epoch_order(10, 1, 42, True).tolist() == ORDER_OF_SEED_42


def test_digest_tells_items_and_their_order_apart() -> None:
    def digest(*ids: int) -> str:
        return Window(1, 1, np.array(ids, dtype=np.int64), 1, 4, True, True).digest

    assert digest(1, 2, 3) == digest(1, 2, 3)
    assert len({digest(1, 2, 3), digest(3, 2, 1), digest(1, 2), digest(1, 2, 3, 3), digest(0, 1, 2)}) == 5
