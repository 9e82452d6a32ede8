"""Predicted against measured peak memory, over ways of training: `python -m benchmarks.memory_prediction`.

Prints a line for each setup, with the third window's measured peak and the most of all, and in the end the worst
difference to the third. Several minutes on two cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.launch.warm import warm_up
from runner.predict.memory import predict
from tests.running import Bench, plan_of

TASKS = {"Wide": {"width": 256, "depth": 8, "items": 400}, "Deep": {"width": 128, "depth": 6, "items": 400}}
WAYS = [
    (1, 1, "ddp", "accumulate"),
    (1, 4, "ddp", "accumulate"),
    (2, 1, "ddp", "accumulate"),
    (2, 2, "ddp", "accumulate"),
    (2, 4, "ddp", "accumulate"),
    (2, 4, "ddp", "every_batch"),
    (2, 1, "fsdp", "accumulate"),
    (2, 4, "fsdp", "accumulate"),
    (2, 4, "fsdp", "every_batch"),
    (4, 2, "fsdp", "every_batch"),
    (4, 2, "fsdp", "accumulate"),
    (4, 2, "hsdp", "accumulate_local"),
]
OPTIMIZERS = [("optim=adamw",), ("optim=sgd",), ("optim=sgd", "optim.momentum=0.9")]


def setups() -> Iterator[tuple[str, tuple[str, ...]]]:
    for task in TASKS:
        for processes, accum, parallel, policy in WAYS:
            for optimizer in OPTIMIZERS:
                for checkpoint in ("false", "true") if task == "Deep" else ("false",):
                    settings = [
                        "hardware=cpu" if processes == 1 else f"hardware={processes}cpu",
                        f"accum={accum}",
                        f"hardware.parallel={parallel}",
                        f"sync.policy={policy}",
                        *optimizer,
                        f"activation_checkpoint={checkpoint}",
                    ]
                    settings += ["hardware.shard=2"] if parallel == "hsdp" else []
                    yield task, (*settings, f"batch.size={4 * processes * accum}")


def main() -> None:
    warm_up()
    bench, worst = Bench(Path(tempfile.mkdtemp())), (0.0, "")
    for task, settings in setups():
        name, arguments = f"tests.probe_memory.{task}", TASKS[task]
        run = bench.run(name, arguments, *settings, "log.memory=true", "budget.updates=3")
        peaks = run.column("peak_memory")
        measured, most = peaks[-1], max(peaks)
        predicted = predict(plan_of(name, arguments, *settings)).peak_bytes
        assert predicted is not None
        difference = predicted / measured - 1
        line = f"{task} {' '.join(settings)}"
        print(
            f"{measured / 2**20:8.3f} MiB measured (most {most / 2**20:7.3f}) {predicted / 2**20:8.3f} predicted {difference:+6.1%}  {line}",
            flush=True,
        )
        worst = max(worst, (abs(difference), line))
    print(f"worst {worst[0]:.1%}  {worst[1]}")


if __name__ == "__main__":
    main()
