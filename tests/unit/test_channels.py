"""A command whose reader has gone, or that is interrupted before it has begun: no traceback, and a sensible exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import PROJECT, started, until

ENTRY = ["-c", "import sys; from runner.__main__ import main; sys.exit(main())"]  # as the installed command does it


def unread(folder: Path, *arguments: str, both: bool = False, program: list[str] | None = None) -> tuple[int, str]:
    """The exit code of a command into a pipe that nobody reads, and what it says beside it; `both`: nobody reads that either."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, *(program or ["-m", "runner"]), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    errors = writer if both else subprocess.PIPE
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=writer, stderr=errors, text=True, timeout=90, check=False
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize(
    ("typed", "code"),
    [("--help", 0), ("--cfg job", 0), ("plan", 0), ("plan --json", 0), ("plan --help", 0), ("recipes", 0), ("compare here", 2), ("--version", 0)],
)  # fmt: skip
def test_a_command_whose_reader_has_gone_comes_to_its_own_end(typed: str, code: int, tmp_path: Path) -> None:
    assert unread(tmp_path, *typed.split()) == (code, "")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "runner", "recipes"]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "not all that was said could be written: No space left on device\n")


@pytest.mark.ranks
def test_closed_channels_are_those_of_nobody(tmp_path: Path) -> None:
    """Their numbers are not given to the next file that is opened, over which a rank would write."""
    line = f"{sys.executable} -m runner budget.updates=3 hydra.run.dir=run <&- >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, timeout=90, check=False).returncode == 0
    assert len((tmp_path / "run" / "updates.jsonl").read_text().splitlines()) == 3


def test_nobody_hears_of_an_error_either(tmp_path: Path) -> None:
    assert unread(tmp_path, "accum=-1", both=True)[0] == 2


def test_control_a_channel_without_a_reader_raises(tmp_path: Path) -> None:
    bare = "import contextlib, sys; from runner import cli; cli.outlasting = lambda: contextlib.nullcontext([]); sys.exit(cli.main())"
    code, said = unread(tmp_path, "recipes", program=["-c", bare])
    assert code not in (0, 2) or "BrokenPipeError" in said


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize(("typed", "module"), [("accum=2", "hydra"), ("plan", "hydra"), ("compare here", "numpy"), ("recipes", "rich"), ("doctor", "pydantic")])  # fmt: skip
def test_an_interrupt_while_modules_are_loaded_is_one_word(
    typed: str, module: str, swallowed: bool, tmp_path: Path
) -> None:
    """`swallowed`: the exception that Python would raise is lost, as it is in a callback of the import system."""
    package = tmp_path / "path" / module
    package.mkdir(parents=True)
    nap = "    time.sleep(60)\n"
    if swallowed:
        nap = f"    try:\n    {nap}    except KeyboardInterrupt:\n        pass\n"
    text = f"import time\nopen({str(tmp_path / 'loading')!r}, 'w').close()\nif True:\n{nap}raise SystemExit(3)\n"
    (package / "__init__.py").write_text(text)
    program = ENTRY if swallowed else None
    with started(tmp_path, *typed.split(), path=[package.parent, PROJECT], program=program) as command:
        until((tmp_path / "loading").exists, 30, f"{typed} loads {module}", every=0.01)
        time.sleep(0.05)
        os.kill(command.process.pid, signal.SIGINT)
        done = command.wait(20)
    assert (done.code, done.out, done.err) == (130, "", "interrupted\n")


def test_the_installed_command_is_the_one_that_is_tested_here() -> None:
    assert 'samestep = "runner.__main__:main"' in (PROJECT / "pyproject.toml").read_text()
