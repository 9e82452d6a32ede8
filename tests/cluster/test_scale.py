"""What is reckoned for 4096 devices, held against 2, 4 and 8: collectives, bytes, and what each node puts on the wire."""

from __future__ import annotations

import json

import pytest

from runner.plan import Sizes
from runner.predict.allreduce import on_the_wire
from runner.predict.link import predict
from tests.cluster.nodes import needs_nodes
from tests.running import Bench, Run

pytestmark = [pytest.mark.cluster, pytest.mark.ranks]

MODEL = {"width": 256, "depth": 8, "items": 64}
FEW, MORE = 2, 6  # updates: the difference is free of what is sent at the start and the end
ON_TOP = 0.1  # of the bytes, at most: headers (a kernel counts one for many frames where it can), answers, small talk


def made(bench: Bench, processes: int, updates: int) -> Run:
    settings = [f"hardware={processes}node", "link=1gbit", f"batch.size={2 * processes}", f"budget.updates={updates}"]
    return bench.run("tests.probe_memory.Wide", MODEL, *settings, "log.memory=false", "sync.bucket_mb=25")


def sent(run: Run) -> float:
    """Bytes that a node has sent, on average over the nodes."""
    nodes = json.loads(run.folder.link.read_text())["nodes"]
    return sum(node["sent"] for node in nodes) / len(nodes)


@needs_nodes
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_reckoned_and_measured(bench: Bench, processes: int) -> None:
    few, more = made(bench, processes, FEW), made(bench, processes, MORE)
    plan = more.plan
    assert plan.comm.bytes is not None
    assert set(more.column("bytes")) == {plan.comm.bytes}
    assert set(more.column("collectives")) == {plan.comm.collectives}
    wire = (sent(more) - sent(few)) / (MORE - FEW)
    reckoned = on_the_wire(processes, plan.comm.bytes)
    assert reckoned <= wire <= (1 + ON_TOP) * reckoned
    sizes = Sizes(items=64, parameters=plan.comm.bytes // 4 - 2)
    seconds = predict(plan, sizes, None)
    assert seconds is not None and seconds.wire_bytes == round(reckoned)
    if processes > 2:
        exchanged = (processes.bit_length() - 1) * plan.comm.bytes  # the control: what recursive doubling would send
        assert not exchanged <= wire <= (1 + ON_TOP) * exchanged
