"""How long from a command to its first batch: Samestep beside torchrun on a bare script of the same work.

    python benchmarks/startup.py [--rounds 5]

Both start two processes that train the digits' network under DDP. Wall seconds until the first batch's loss is on disk, and
CPU seconds of everything that was started, until it has ended after a few updates. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UPDATES = 5
PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans of our children become ours, so that their CPU time is counted

BARE = f"""
import json, os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from runner.tasks.digits import Digits

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
task = Digits()
data = task.train_data()
model = DistributedDataParallel(task.model())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), collate_fn=task.collate)
with open(f"batches-{{dist.get_rank()}}.jsonl", "a") as file:
    for step, batch in zip(range({UPDATES}), loader):
        total, weight = task.loss(model, batch)
        loss = total / weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        file.write(json.dumps({{"step": step, "loss": loss.item()}}) + "\\n")
        file.flush()
dist.barrier()
del model
dist.destroy_process_group()
"""


def samestep(folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "runner", "hardware=2cpu", f"budget.updates={UPDATES}", "hydra.run.dir=run",
        "schedule=constant",
    ]  # fmt: skip


def torchrun(folder: Path) -> list[str]:
    (folder / "bare.py").write_text(BARE)
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "bare.py"]


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def time_one(make: object, rows: str) -> tuple[float, float, float]:
    """Wall seconds to the first batch, wall seconds in all, CPU seconds in all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = make(folder)  # type: ignore[operator]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        before, start = cpu_of_children(), time.perf_counter()
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=environment)
            first = 0.0
            while process.poll() is None:
                if not first and any(f.stat().st_size for f in folder.glob(rows)):
                    first = time.perf_counter() - start
                time.sleep(0.01)
            whole = time.perf_counter() - start
        if process.returncode or not first:
            raise SystemExit((folder / "output.txt").read_text())
        reap()
        return first, whole, cpu_of_children() - before


def reap() -> None:
    """Wait for what our children left behind (a fork server that is about to end)."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    contenders = {"samestep": (samestep, "run/batches.jsonl"), "torchrun": (torchrun, "batches-*.jsonl")}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, (make, rows) in list(contenders.items())[:: 1 if turn % 2 else -1]:
            result = time_one(make, rows)
            if turn:  # the first round fills the system's file cache
                found[name].append(result)
    for name, results in found.items():
        first, whole, cpu = (statistics.median(column) for column in zip(*results, strict=True))
        print(
            f"{name:9} first batch after {first:.2f} s, ended after {whole:.2f} s, {cpu:.2f} CPU s (medians of {rounds})"
        )


if __name__ == "__main__":
    main()
