"""`compile=true`: the same updates, and nothing compiled after the first window: not by syncing, nor by short windows.

Compiling a transformer takes half a minute of a core; a small network shows the same.
"""

from __future__ import annotations

import pytest

from tests.running import Bench, Run

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

WINDOWS = ("optim.lr=0.1", "batch.size=16", "budget.updates=7", "optim.clip=1.0", "compile=true")
ITEMS = 37  # at 16 a window: 16, 16 and 5; in micro-batches of 2, the last one has a single item
DROPPING = {"items": ITEMS, "watch": True}


def run(bench: Bench, processes: int, accum: int, *settings: str, **more: object) -> Run:
    hardware = "hardware=cpu" if processes == 1 else f"hardware={processes}cpu"
    return bench.run("Network", {**DROPPING, **more}, *WINDOWS, hardware, f"accum={accum}", *settings)


@pytest.mark.parametrize("policy", ["accumulate", "no_sync", "every_batch"])
@pytest.mark.parametrize(("processes", "accum"), [(1, 8), (2, 4)])
def test_one_graph(bench: Bench, processes: int, accum: int, policy: str) -> None:
    """Compiled in the first window and never again, with the losses of the model as it is written."""
    compiled = run(bench, processes, accum, f"sync={policy}")
    assert compiled.column("items") == [16, 16, 5, 16, 16, 5, 16]
    for rank in range(processes):
        assert [row["graphs"] for row in compiled.watched(rank)] == [1] * 7
    written = run(bench, processes, accum, f"sync={policy}", "compile=false")
    assert compiled.column("loss", "batches") == pytest.approx(written.column("loss", "batches"), rel=1e-5)
    assert [row["graphs"] for row in written.watched(0)] == [0] * 7


def test_one_graph_control(bench: Bench) -> None:
    """The control: compiled for fixed sizes, and short micro-batches too, the short window adds a graph."""
    fixed = run(bench, 1, 8, fault="fixed_sizes")
    assert [row["graphs"] for row in fixed.watched(0)] == [1, 1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(("processes", "accum"), [(2, 4), (4, 2)])
def test_compiled_to_the_last_bit(bench: Bench, processes: int, accum: int) -> None:
    runs = [run(bench, p, a, "seeding=bitwise") for p, a in ((1, 8), (processes, accum))]
    assert runs[0].column("loss", "batches") == runs[1].column("loss", "batches")
    assert runs[0].folder.model.read_bytes() == runs[1].folder.model.read_bytes()
