"""Keys of streams: a function of what they are for, and of nothing else."""

from __future__ import annotations

from itertools import product

import pytest

from runner.keys import derive


def test_distinct_purposes_have_distinct_keys() -> None:
    """Neighbouring seeds, updates and items; parts that would run together if they were only written side by side."""
    wanted = [
        (seed, purpose, *parts)
        for seed, purpose in product((0, 1, 11, 2**63 - 1), ("item", "micro-batch"))
        for parts in [(), (0,), (1,), (1, 1), (11,), (1, 11), (11, 1), (-1,), (2**40,)]
    ]
    assert len({derive(*w) for w in wanted}) == len(wanted)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63 - 1])
def test_keys_are_63_bits(seed: int) -> None:
    """What torch takes as a seed, and 0 <= key < 2**63."""
    keys = [derive(seed, "item", 1, i) for i in range(2000)]
    assert all(0 <= k < 2**63 for k in keys)
    assert max(keys) >= 2**62 > min(keys)
    assert len({k & 0xFFFFFFFF for k in keys}) > 1990, "the low half, which seeds numpy, varies as well"


def test_keys_are_kept_for_ever() -> None:
    """A change here is a change of every experiment's draws."""
    assert derive(42, "micro-batch", 1, 0) == 7812897394146104478
