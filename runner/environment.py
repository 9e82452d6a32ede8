"""What a run was made with: versions, code, hardware, threads, and the variables that change results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runner.launch.hardware import cores, gpus, threads_of
from runner.plan import Plan

PACKAGES = ("samestep", "torch", "numpy", "hydra-core", "omegaconf", "pydantic", "scikit-learn")
PREFIXES = (
    "CUDA_",
    "NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "TORCH_",
    "PYTORCH_",
    "OPENBLAS_",
    "SLURM_",
    "RUNNER_",
    "PYTHONHASHSEED",
)
DIFF_LIMIT = 1_000_000  # characters of a dirty diff that are kept


def capture(plan: Plan, command: Sequence[str], nodes: Mapping[int, Any] | None = None) -> str:
    """The environment of a run about to start by `command`, as JSON; `nodes` is what other machines say of themselves."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "command": list(command),
        "started_in": str(Path.cwd()),
        "git": _git(),
        "hardware": {"cores": cores(), "gpus": gpus(), "processor": platform.processor() or platform.machine()},
        "threads": threads_of(plan),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)},
    }
    if nodes:
        facts["nodes"] = {str(n): said for n, said in sorted(nodes.items())}
    return json.dumps(facts, indent=2) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, str] | None:
    """Commit and uncommitted changes of the folder that the command was started in; None outside of git."""
    commit = _ask_git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _ask_git("diff", "HEAD") or ""
    return {"commit": commit.strip(), "diff": diff[:DIFF_LIMIT]}


def _ask_git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
