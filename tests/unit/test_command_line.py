"""The program as it is typed: its verbs and flags, its exit codes, and what it must not load to answer.

No test here trains: each command answers from the configuration alone.
"""

from __future__ import annotations

import json
import re
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml

from runner.cli import VERBS, main
from tests.commands import PROJECT, Done, files, marked, runner, started, until

PLAN_SECONDS = 1.5  # of CPU
NEEDS_TORCH = """import torch

class Task:
    def __init__(self, width=4): ...
    def model(self): ...
    def train_data(self): ...
    def loss(self, model, batch): ...
"""


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    folder.mkdir()
    return folder


@pytest.fixture
def no_torch(tmp_path: Path) -> list[Path]:
    """An import path on which `import torch` fails, and leaves a file that says so."""
    package = tmp_path / "blocker" / "torch"
    package.mkdir(parents=True)
    tell = f"open({str(tmp_path / 'torch was imported')!r}, 'w').close()"
    (package / "__init__.py").write_text(f"{tell}\nraise ImportError('torch was imported')\n")
    return [package.parent, PROJECT]


def _was_imported(no_torch: list[Path]) -> bool:
    return (no_torch[0].parent / "torch was imported").exists()


def test_planning_needs_no_torch(start: Path, no_torch: list[Path]) -> None:
    done = runner(start, "plan", "hardware=8gpu", "accum=2", path=no_torch).expect(0)
    assert "observed batch" in done.out
    assert not _was_imported(no_torch)


def test_the_check_for_torch_sees_a_command_that_loads_it(start: Path, no_torch: list[Path]) -> None:
    """The control of the tests around it: a task whose model must be made to be counted."""
    (start / "needs.py").write_text(NEEDS_TORCH)
    done = runner(start, "plan", "--load", "task=custom", "task._target_=needs.Task", path=no_torch)
    assert done.code != 0
    assert _was_imported(no_torch)


@pytest.mark.parametrize(
    "typed",
    [
        "+typo=1", "hardwear=2gpu", "precision=fp8x", "accum=-1", "accum=1.5", "batch.size=63 hardware=2cpu accum=4",
        "task=custom", "task=custom task._target_=nowhere.Task", "task.width=${nothing}", "accum", "-m accum=1,0",
        "seed=x -m accum=1,2", "recipe=nope", "hardware=2node",
    ],
)  # fmt: skip
def test_a_command_that_cannot_run_says_so_in_one_line_and_starts_nothing(
    typed: str, start: Path, no_torch: list[Path]
) -> None:
    with started(start, *typed.split(), path=no_torch) as command:
        done = command.wait().expect(2)
        until(lambda: not marked(command.mark), 20, "nothing that it started is left")
    assert len(done.lines()) == 1, done.err
    assert done.out.strip() == ""
    assert files(start) == set() and list(start.iterdir()) == [], "it leaves no folder behind"
    assert not _was_imported(no_torch), "it loaded torch, here or in a process that it started"


def test_all_problems_of_a_run_are_told_at_once(start: Path) -> None:
    typed = ["+typo=1", "hardwear=2gpu", "precision=fp8x", "accum=-1", "optim.lr=fast", "batch.size=0"]
    done = runner(start, *typed).expect(2)
    keys = [line.partition(":")[0] for line in done.lines()]
    assert sorted(keys) == ["accum", "batch.size", "hardwear", "optim.lr", "precision", "typo"]


@pytest.mark.parametrize("swept", [(), ("-m", "seed=0,1")])
def test_what_is_wrong_with_a_task_of_ones_own_is_told_with_all_the_rest(
    swept: tuple[str, ...], start: Path, no_torch: list[Path]
) -> None:
    (start / "needs.py").write_text(NEEDS_TORCH)
    typed = ["task=custom", "task._target_=needs.Tsak", "accum=-1", "hardware=2gpu", "batch.size=66", *swept]
    with started(start, *typed, path=no_torch, CUDA_VISIBLE_DEVICES="") as command:
        done = command.wait().expect(2)
        until(lambda: not marked(command.mark), 20, "nothing that it started is left")
    told = {line.partition(":")[0]: line for line in done.lines()}
    assert sorted(told) == ["accum", "hardware", "task._target_"] and len(done.lines()) == 3, done.err
    assert "needs (needs.py) has no class or function Tsak" in told["task._target_"]
    assert "Did you mean task._target_=needs.Task?" in told["task._target_"]
    assert not _was_imported(no_torch)


@pytest.mark.parametrize(("choice", "instead"), [("2gpu", "2cpu"), ("gpu", "cpu")])
def test_hardware_that_is_not_there_is_answered_with_what_is(choice: str, instead: str, start: Path) -> None:
    done = runner(start, f"hardware={choice}", "batch.size=66", CUDA_VISIBLE_DEVICES="").expect(2)
    (line,) = done.lines()
    assert line.startswith("hardware: ")
    assert re.search(r"this machine has 0 GPUs and \d+ CPU cores?", line)
    assert f"hardware={instead} would run" in line
    plan = runner(start, "plan", "--json", f"hardware={choice}", "batch.size=66").expect(0)
    assert json.loads(plan.out)["arithmetic"]["processes"] == int(choice.removesuffix("gpu") or 1), "it can be planned"
    would = runner(start, f"hardware={instead}", "batch.size=66", "accum=-1", CUDA_VISIBLE_DEVICES="").expect(2)
    assert [line.partition(":")[0] for line in would.lines()] == ["accum"], "what is offered has no such problem"


def test_a_plan_for_machines_has_the_fields_that_are_promised(start: Path) -> None:
    done = runner(start, "plan", "hardware=2cpu", "accum=4", "budget.epochs=2", "--json").expect(0)
    plan = json.loads(done.out)
    counts = {k: plan["arithmetic"][k] for k in ("observed", "per_device", "accum", "processes", "updates")}
    assert counts == {"observed": 64, "per_device": 8, "accum": 4, "processes": 2, "updates": 2 * -(-1437 // 64)}
    assert plan["comm"]["collectives"] == 1
    assert plan["comm"]["bytes"] > 0 and plan["comm"]["bytes"] % 4 == 0
    assert "peak_bytes" in plan["memory"]
    alone = json.loads(runner(start, "plan", "--json", "accum=4").expect(0).out)
    assert (alone["comm"]["collectives"], alone["comm"]["bytes"]) == (0, 0), "one process sends nothing"
    assert list(start.iterdir()) == []


def test_a_plan_answers_quickly(start: Path) -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        runner(start, "plan").expect(0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_seconds() for _ in range(2)) < PLAN_SECONDS


def test_cfg_shows_the_configuration_wherever_the_flag_stands(start: Path) -> None:
    shown = runner(start, "accum=3", "--cfg", "job", "optim.lr=1e-3").expect(0)
    values = yaml.safe_load(shown.out)
    assert (values["accum"], values["optim"]["lr"], values["hardware"]["processes"]) == (3, 0.001, 1)
    assert "hydra" not in values
    assert runner(start, "--cfg", "job", "accum=3", "optim.lr=1e-3").out == shown.out
    assert list(start.iterdir()) == []


def test_help_names_the_verbs_the_groups_and_the_recipes(start: Path) -> None:
    out = runner(start, "--help").expect(0).out
    verbs = [f"python -m runner {verb}" for verb in VERBS if verb != "run"]
    for text in (
        *verbs,
        "python -m runner [run]",
        "-m sweeps",
        "hardware: ",
        "2cpu",
        "{processes}gpu",
        "sync: accumulate",
    ):
        assert text in out
    assert re.search(r"recipe: .*gradient_sync.*quickstart", out)
    assert re.search(r"^accum: 1", out, re.MULTILINE)


def test_info_says_where_configurations_come_from(start: Path) -> None:
    (start / "recipes").mkdir()
    out = runner(start, "--info", "searchpath").expect(0).out
    assert str(PROJECT / "conf") in out
    assert str(PROJECT / "recipes") in out
    assert str(start / "recipes") in out, "the folder's own recipes"


def test_version_is_that_of_the_distribution(start: Path) -> None:
    out = runner(start, "--version").expect(0).out
    try:
        assert out == f"samestep {version('samestep')}\n"
    except PackageNotFoundError:
        assert out == "samestep (not installed)\n"


@pytest.mark.parametrize("typed", ["plan --jsn", "plan --multirun", "--no-such-flag accum=2"])
def test_an_unknown_flag_is_refused(typed: str, start: Path) -> None:
    done = runner(start, *typed.split()).expect(2)
    assert re.search(r"--jsn|--multirun|--no-such-flag", done.err)


def test_a_folder_of_configurations_can_be_added(start: Path) -> None:
    (start / "mine" / "task").mkdir(parents=True)
    (start / "mine" / "task" / "nine.yaml").write_text("_target_: runner.tasks.digits.Digits\nwidth: 9\n")

    def width(*arguments: str) -> Done:
        return runner(start, *arguments)

    shown = width("--config-dir", "mine", "task=nine", "--cfg", "job").expect(0)
    assert yaml.safe_load(shown.out)["task"]["width"] == 9
    plan = width("plan", "--config-dir", "mine", "task=nine", "--json").expect(0)
    assert json.loads(plan.out)["config"]["task"]["width"] == 9
    refused = width("--config-dir", "mine", "task=nine", "accum=-1").expect(2)
    assert [line.partition(":")[0] for line in refused.lines()] == ["accum"], "and only what is wrong is refused"
    without = width("task=nine", "--cfg", "job")
    assert without.code == 2 and "nine" in without.err  # the control: it is the folder that makes the difference


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("hydra.run.dir=/dev/null/x", "hydra.run.dir"),
        ("hydra.run.dir=loop/x bathc=1", "hydra.run.dir"),
        ("hydra.sweep.dir=/dev/null/x -m seed=0,1", "hydra.sweep.dir"),
        ("hydra.sweep.dir=/proc/x recipe=observed_batch", "hydra.sweep.dir"),
        ("hydra.sweep.subdir=/proc/x -m seed=0,1", "hydra.sweep.subdir"),
        ("hydra.run.dir=file", "hydra.run.dir"),
        ("hydra.run.dir=", "hydra.run.dir"),
        ("hydra.run.dir=out/${task.nothing}", "hydra.run.dir"),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_one_line_before_anything_starts(
    start: Path, no_torch: list[Path], typed: str, key: str
) -> None:
    (start / "loop").symlink_to("loop")
    (start / "file").touch()
    done = runner(start, *typed.split(), path=no_torch).expect(2)
    assert [line.partition(":")[0] for line in done.lines()] == ["bathc", key][-1 - ("bathc" in typed) :]
    assert f"Set {key}=FOLDER" in done.err
    assert not _was_imported(no_torch)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("twin", "twin: takes one run's folder"),
        ("twin docs", "docs: is no run's folder: it has no plan.json"),
        ("twin A B", "twin: takes one run's folder"),
        ("twin nowhere", "nowhere: there is no such folder"),
        ("twin broken", "broken/plan.json: is no plan of this version"),
        ("keep nowhere recipe=quickstart --to here", "keep: nowhere: there is no such file or folder"),
        ("compare", "compare needs the folders of two or more runs. Type: python -m runner compare RUN RUN..."),
        ("compare A --png", "--png needs a value. Type --png curves.png"),
    ],
)
def test_a_mistake_with_a_verb_is_one_line_and_exit_code_2(
    typed: str, words: str, start: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (start / "docs").mkdir()
    (start / "broken").mkdir()
    (start / "broken" / "plan.json").write_text("{}")
    monkeypatch.chdir(start)
    assert main(typed.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)


@pytest.mark.parametrize("verb", [v for v in VERBS if v != "run"])
def test_every_verb_says_what_it_takes(verb: str, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"python -m runner {verb}")
    assert list(start.iterdir()) == []
