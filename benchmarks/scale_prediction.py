"""Predicted against measured seconds of one all-reduce, on 2, 4 and 8 nodes: `python benchmarks/scale_prediction.py`.

The nodes are network namespaces of this machine (docs/link.md), one process each, every one with its own way out. gloo reduces
gradients of several sizes, one after another, since a queue lets the first bytes after a pause through at once; the prediction is the one that `plan --scale` prints for the same nodes and link (a ring). As
a control each row also shows the error of recursive doubling, which is another algorithm and must not fit from 4 nodes
on. Prints the worst. About a minute and a half; links are slow enough for two cores to feed eight of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

NODES = (2, 4, 8)
LINKS = {"100 Mbit/s": (100.0, 0.0), "50 Mbit/s, 5 ms": (50.0, 5.0)}  # Mbit/s, ms of one way
SIZES = {256 * 2**10: 20, 2 * 2**20: 5, 8 * 2**20: 2}  # bytes: all-reduces in a row
TIMES = 3
LIMIT = 0.15


def main() -> int:
    if len(sys.argv) > 1:
        return _reduce(json.loads(sys.argv[1]))
    from runner.predict.allreduce import doubling, path_of, ring_of_halves
    from runner.surroundings import Link

    worst = (0.0, "")
    print(f"{'link':18}{'nodes':>6}{'bytes':>10}{'measured':>10}{'predicted':>11}{'error':>8}   recursive doubling")
    for name, (rate, delay) in LINKS.items():
        path = path_of(Link(name="custom", rate=rate, delay=delay))
        for nodes in NODES:
            for size, seconds in _measured(nodes, rate, delay).items():
                expected, other = ring_of_halves(nodes, path, size), doubling(nodes, path, size)
                error = seconds / expected - 1
                print(
                    f"{name:18}{nodes:6}{size:10}{seconds:10.4f}{expected:11.4f}{error:+8.1%}   {seconds / other - 1:+.1%}",
                    flush=True,
                )
                worst = max(worst, (abs(error), f"{name}, {nodes} nodes, {size} bytes"))
    print(f"worst {worst[0]:.1%}: {worst[1]} (wanted: within {LIMIT:.0%})")
    return 0 if worst[0] <= LIMIT else 1


def _measured(nodes: int, rate: float, delay: float) -> dict[int, float]:
    """Seconds of an all-reduce for every size, on the slowest process: the median of several."""
    from runner.link.emulated import PORT, EmulatedNodes
    from runner.link.shaping import DEVICE, Shape, address

    made = EmulatedNodes(Shape(nodes, rate, delay))
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(nodes):
                told = {"rank": rank, "nodes": nodes, "spaces": made.paths[rank], "folder": folder}
                told["store"] = f"tcp://{address(0)}:{PORT}"
                environment = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, json.dumps(told)]
                processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
            if codes := [c for p in processes if (c := p.wait(timeout=300))]:
                raise SystemExit(f"processes ended with {codes}")
            return {int(size): seconds for size, seconds in json.loads(Path(folder, "seconds").read_text()).items()}
        finally:
            for process in processes:
                process.kill()
            made.close()


def _reduce(told: dict[str, Any]) -> int:
    """One process. It enters its node before torch, which has threads, is imported."""
    from runner.link import spaces

    spaces.enter(told["spaces"])
    import time

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=told["store"], rank=told["rank"], world_size=told["nodes"])
    found: dict[int, float] = {}
    for size, row in SIZES.items():
        gradient = torch.zeros(size // 4)
        each = []
        for _ in range(TIMES):
            dist.all_reduce(gradient)  # finds the connection's speed, and uses up what the queue lets through at once
            start = time.perf_counter()
            for _ in range(row):
                dist.all_reduce(gradient)
            each.append((time.perf_counter() - start) / row)
        slowest = torch.tensor(each, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        found[size] = median(slowest.tolist())
    if told["rank"] == 0:
        Path(told["folder"], "seconds").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # what holds the group would have to go first


if __name__ == "__main__":
    sys.exit(main())
