"""The verdict on runs of real processes: the same for 1, 2 and 4 of them; and a rank that is left out is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

COMMON = ("batch=auto", "batch.per_device=16", "budget.updates=30", "hardware.threads=1")


def runner(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    for name, setup in {
        "one": (),
        "two": ("hardware=2cpu",),
        "every": ("hardware=2cpu", "sync=every_batch"),
        "four": ("hardware=4cpu",),
    }.items():
        done = runner(root, *COMMON, *setup, f"hydra.run.dir=outputs/{name}")
        assert done.returncode == 0, done.stderr
    return root


def test_processes_and_sync_policies_are_called_the_same(outputs: Path) -> None:
    done = runner(outputs, "compare", "outputs", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 6
    assert {p["verdict"] for p in found["pairs"]} <= {"equal", "identical"}
    reductions = {r["name"]: r["collectives"] for r in found["runs"]}
    assert reductions == {"one": 0, "two": 1, "every": 2, "four": 1}


def test_a_twin_of_two_processes(outputs: Path) -> None:
    done = runner(outputs, "twin", "outputs/two")
    assert done.returncode == 0, done.stderr
    plan = json.loads((outputs / "outputs" / "two-twin" / "plan.json").read_text())
    assert plan["disturb"] is True
    done = runner(outputs, "compare", "outputs/one", "outputs/two")
    assert done.returncode == 0, done.stdout
    assert "within the twin's distance" in done.stdout


BROKEN = '''
import torch.distributed as dist
from torch.futures import Future
from runner.sync.ddp import Ddp
from runner.tasks.digits import Digits

class Broken(Digits):
    """From update 20 on the last rank keeps its gradients to itself."""

    def loss(self, model, batch):
        Ddp.calls = getattr(Ddp, "calls", 0) + 1
        return super().loss(model, batch)

before = Ddp._reduce
def reduce(self, state, bucket):
    if Ddp.calls >= 2 * 19 + 2 and dist.get_rank() == dist.get_world_size() - 1:
        bucket.buffer()[:-2] *= 0  # all but the loss and the weight
    return before(self, state, bucket)
reduce.__annotations__ = before.__annotations__
Ddp._reduce = reduce
'''


def test_a_rank_left_out_is_found_to_the_update(outputs: Path) -> None:
    (outputs / "broken_task.py").write_text(BROKEN)
    task = ("task=custom", "task._target_=broken_task.Broken")
    for name, setup in (("whole", ()), ("short", ("hardware=2cpu",))):
        done = runner(outputs, *task, *COMMON, *setup, f"hydra.run.dir=broken/{name}")
        assert done.returncode == 0, done.stderr
    done = runner(outputs, "compare", "broken", "--json")
    pair = json.loads(done.stdout)["pairs"][0]
    assert (pair["verdict"], pair["first_difference"]) == ("different", 20), pair
    assert done.returncode == 1
