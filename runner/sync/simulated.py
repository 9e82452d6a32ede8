"""A link that is not there: reductions end as late as it would let them.

The model: P processes on N nodes reduce in a ring, which crosses every link between nodes once. A bucket of B bytes
takes 2 (P - 1) steps, of B / P bytes each, and each step waits for the link's delay twice, since gloo
announces what it sends: it occupies the link for

    2 (P - 1) / P x 8 B / goodput  +  2 (P - 1) x 2 delay

where goodput is the rate times 1448 / 1514, what TCP over Ethernet leaves of it. Buckets wait for each other: one is on the link at a time. A bucket's time
begins when it has really been reduced, which is when all processes have it. Only gradients are late: not the weights that are shared at the
start, and not what processes tell each other in a few bytes.
"""

from __future__ import annotations

import random
import threading
import time
from queue import SimpleQueue

import torch
from torch import Tensor

from runner.buckets import TRIPS
from runner.plan import Plan
from runner.surroundings import Link

PAYLOAD = 1448 / 1514  # of a full frame: 1500 bytes less 52 of headers, and 14 around them


def seconds_on(link: Link, size: int, processes: int) -> float:
    """How long a bucket of `size` bytes occupies a link, without jitter."""
    assert link.rate is not None
    steps = 2 * (processes - 1)
    return steps / processes * size * 8 / (link.rate * 1e6 * PAYLOAD) + steps * TRIPS * link.delay / 1e3


class SimulatedLink:
    """One link, used by one bucket after another."""

    def __init__(self, link: Link, processes: int):
        self._link, self._processes = link, processes
        self._random = random.Random(0)  # the same draws on every process
        self._waiting: SimpleQueue[tuple[float, int, Tensor, torch.futures.Future[Tensor]]] = SimpleQueue()
        threading.Thread(target=self._deliver, name="simulated-link", daemon=True).start()

    def carry(self, reduced: torch.futures.Future[Tensor], size: int) -> torch.futures.Future[Tensor]:
        """The same result as `reduced` has, later."""
        arrived: torch.futures.Future[Tensor] = torch.futures.Future()

        def start(done: torch.futures.Future[Tensor]) -> None:
            try:
                self._waiting.put((time.monotonic(), size, done.value(), arrived))
            except Exception as error:  # a peer is gone: whoever waits must hear of it
                arrived.set_exception(error)  # type: ignore[arg-type]

        reduced.add_done_callback(start)
        return arrived

    def _deliver(self) -> None:
        free = 0.0
        while True:
            ready, size, value, arrived = self._waiting.get()
            late = 2 * (self._processes - 1) * self._random.random() * self._link.jitter / 1e3
            free = max(free, ready) + seconds_on(self._link, size, self._processes) + late
            time.sleep(max(0.0, free - time.monotonic()))
            arrived.set_result(value)


def simulated_link(plan: Plan) -> SimulatedLink | None:
    """The link that a plan wants simulated, where anything would pass it."""
    link, hardware = plan.config.link, plan.config.hardware
    if not link.chosen or not link.simulate or hardware.nodes == 1:
        return None
    return SimulatedLink(link, hardware.processes)
