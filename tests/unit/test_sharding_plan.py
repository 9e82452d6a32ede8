"""What the plan says of sharded models, and refuses."""

from __future__ import annotations

import json

import pytest

from runner.errors import ConfigError
from runner.plan import Sizes, make_plan
from runner.schema import Hardware
from tests.running import plan_of

TWELVE = ("batch.size=48", "hardware=4cpu", "accum=4")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("sync.policy=accumulate_local",), "sync: accumulate_local reduces inside a copy .* Use hardware.parallel=hsdp, or sync=accumulate"),
        (("hardware.shard=2",), "hardware.shard: 2 has no effect under ddp. Use hardware.parallel=hsdp"),
        (("hardware.parallel=hsdp",), "hardware.shard: .* and 4 is not such a number. Set hardware.shard=2$"),
        (("hardware.parallel=hsdp", "hardware.shard=3"), "and 3 is not such a number. Set hardware.shard=2$"),
        (("hardware.parallel=hsdp", "hardware.shard=1"), "and 1 is not such a number. Set hardware.shard=2$"),
        (("hardware.parallel=hsdp", "hardware.processes=3", "batch.size=12"), "is not such a number. Use hardware.parallel=fsdp"),
        (("hardware.parallel=fsdp", "hardware.device=xla"), "hardware.parallel: fsdp and hsdp are not for xla"),
    ],
)  # fmt: skip
def test_refusals(settings: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        plan_of("Vector", {}, *TWELVE, *settings)


@pytest.mark.parametrize("policy", ["accumulate", "no_sync", "backward_only", "every_batch"])
def test_reductions(policy: str) -> None:
    """The known mistake of DDP is none here; what is sent depends on the model's parts."""
    config = plan_of("Vector", {}, *TWELVE, "hardware.parallel=fsdp", f"sync={policy}").config
    comm = make_plan(config, Sizes(items=100, parameters=10)).comm
    assert (comm.reductions, comm.collectives, comm.bytes) == (4 if policy == "every_batch" else 1, None, None)


def test_copies() -> None:
    def size(**values: object) -> int:
        return Hardware.model_validate_json(json.dumps({"device": "cpu", **values})).copy_size

    assert size(processes=8, parallel="fsdp") == 8
    assert size(processes=8, parallel="hsdp", nodes=2) == 4
    assert size(processes=8, parallel="hsdp", shard=2) == 2
    assert size(processes=8) == size(processes=1, parallel="fsdp") == 1
