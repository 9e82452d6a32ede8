"""Loaded by the fork server, for its effect: torch is in memory before the first rank is forked.

`torch._dynamo` is what building the first optimizer would load otherwise, in every rank again.
Freezing the garbage collector keeps the pages that all ranks share from being copied.
"""

import gc

import torch._dynamo  # noqa: F401

import runner.backend.cpu
import runner.sync.ddp
import runner.sync.single
import runner.worker  # noqa: F401

gc.freeze()
