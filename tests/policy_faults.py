"""Faults of the policies that change the mathematics, for `tests.faults` to plant."""

from __future__ import annotations

from contextlib import nullcontext

from runner.sync.local_sgd import LocalSgd


def never_averaged() -> None:
    """Processes that make their own updates never meet."""
    LocalSgd.conclude = lambda self: None


def evaluated_apart() -> None:
    """Each process evaluates its own weights."""
    LocalSgd.alike = lambda self: nullcontext()
