"""batch=auto_memory before a run: the choice is made once, in a process beside this one, which never loads torch."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import Connection, wait

from runner.choices import BatchMode
from runner.errors import ConfigError, Problem, RunnerError, TaskError
from runner.launch.warm import CONTEXT, bare, warm_up
from runner.plan import Plan


def chosen(plan: Plan) -> Plan:
    """The plan with its micro-batch chosen, where that is open. Raises ConfigError if none fits."""
    batch = plan.config.batch
    if batch.mode is not BatchMode.auto_memory or batch.per_device is not None:
        return plan
    warm_up()
    theirs, ours = CONTEXT.Pipe(duplex=True)
    process = CONTEXT.Process(target=_main, args=(plan.to_json(), dict(os.environ), theirs), name="samestep-choice")
    with bare():
        process.start()
    theirs.close()
    try:
        told = json.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        raise TaskError(
            f"batch=auto_memory: the process that was to choose ended with exit code {process.exitcode}"
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if "plan" in told:
        return Plan.from_json(json.dumps(told["plan"]))
    if "problems" in told:
        raise ConfigError(Problem(*p) for p in told["problems"])
    raise TaskError(told["error"])


def _main(text: str, environment: dict[str, str], report: Connection) -> None:
    """In the process beside: choose, and tell."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a task prints is no part of the run's output
    from runner.predict.choice import choose

    try:
        told = {"plan": json.loads(choose(Plan.from_json(text)).to_json())}
    except ConfigError as error:
        told = {"problems": [[p.key, p.what, p.fix] for p in error.problems]}
    except Exception as error:
        known = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
        told = {"error": f"batch=auto_memory could not predict the memory: {known}"}
    with contextlib.suppress(OSError):
        report.send_bytes(json.dumps(told).encode())


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
