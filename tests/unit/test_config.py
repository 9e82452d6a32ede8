"""From a command line to a checked configuration: what is understood, what wins, and every way to get it wrong.

Asked of `plan` in this process, which starts nothing; `test_command_line.py` starts the program itself.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from runner.cli import main
from runner.plan import Plan

MINE = ["task=custom", "task._target_=mytask.MyTask"]


def answer(*arguments: str) -> tuple[int, str, str]:
    """What `plan --json` answers: its exit code and its two channels."""
    out, err, path = io.StringIO(), io.StringIO(), list(sys.path)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["plan", "--json", *arguments])
    finally:
        sys.path[:] = path
    return code, out.getvalue(), err.getvalue()


def problems(*arguments: str) -> list[str]:
    """The lines that a wrong command line is answered with; [] for a right one."""
    code, out, err = answer(*arguments)
    assert (code, bool(out), bool(err)) in ((2, False, True), (0, True, False))
    return err.splitlines()


def plan(*arguments: str) -> Plan:
    code, out, err = answer(*arguments)
    assert code == 0, err
    return Plan.from_json(out)


# what is typed, the key that must be named, and what the line must tell: the value found, and what to type instead
WRONG = {
    "+typo=1": ("typo", ["not a key", "batch, budget"]),
    "typo=1": ("typo", ["not a key"]),
    "+optim.typo=1": ("optim.typo", ["not a key", "lr"]),
    "+data.typo=1": ("data.typo", ["not a key", "shuffle, workers"]),
    "optim.weight_decoy=0": ("optim.weight_decoy", ["Did you mean optim.weight_decay?"]),
    "data.worker=2": ("data.worker", ["Did you mean data.workers?"]),
    "tracker.mode=online": ("tracker.mode", ["tracker=local", "type tracker=wandb tracker.mode=online"]),
    "optim.momentum=0.9": ("optim.momentum", ["optim=adamw", "type optim=sgd optim.momentum=0.9"]),
    "schedule.every=5": ("schedule.every", ["schedule=cosine", "type schedule=step schedule.every=5"]),
    "schedule=constant schedule.end=0": ("schedule.end", ["schedule=linear and schedule=cosine have it"]),
    "precision.scale=512": ("precision.scale", ["512", "Use precision=fp16"]),
    "optim.name=sgd": ("optim.name", ["Type optim=sgd"]),
    "hardware=2node link=wan link.simulate=true": ("link.loss", ["Set link.loss=0"]),  # and no word of link=none
    "hardware=3node hardware.processes=4 link=1gbit": ("hardware.processes", ["Set a multiple"]),  # and none of 3
    "accum.much=4": ("accum.much", ["type accum=..."]),
    "hardwear=2gpu": ("hardwear", ["Did you mean hardware?"]),
    "hardware=0cpu": ("hardware", ["'0cpu'", "2cpu", "{processes}cpu"]),
    "hardware=cup": ("hardware", ["'cup'", "Did you mean hardware=cpu?"]),
    "precision=fp8x": ("precision", ["'fp8x'", "bf16", "fp32"]),
    "precision=tf32": ("precision", ["cpu", "precision=fp32"]),
    "sync=never": ("sync", ["'never'", "accumulate"]),
    "recipe=nope": ("recipe", ["'nope'", "gradient_sync"]),
    "accum=-1": ("accum", ["-1", "greater than 0"]),
    "accum=0": ("accum", ["0", "greater than 0"]),
    "accum=1.5": ("accum", ["1.5", "integer"]),
    "accum=two": ("accum", ["'two'", "integer"]),
    "accum=true": ("accum", ["true", "integer"]),
    "accum=null": ("accum", ["null", "integer"]),
    "seed=-1": ("seed", ["-1", "greater than or equal to 0"]),
    "optim.lr=fast": ("optim.lr", ["'fast'", "number"]),
    "optim.lr=-0.1": ("optim.lr", ["-0.1", "greater than or equal to 0"]),
    "optim.lr=nan": ("optim.lr", ["NaN", "finite"]),
    "optim.clip=0": ("optim.clip", ["0", "greater than 0"]),
    "optim.betas=[0.9]": ("optim.betas", []),
    "batch.size=0": ("batch.size", ["0", "greater than 0"]),
    "batch.remainder=some": ("batch.remainder", ["'some'", "keep", "drop", "pad"]),
    "data.shuffle=maybe": ("data.shuffle", ["'maybe'"]),
    "data.workers=-1": ("data.workers", ["-1"]),
    "eval.every=often": ("eval.every", ["'often'", "1epoch"]),
    "nonfinite=ignore": ("nonfinite", ["'ignore'", "stop", "skip"]),
    "hardware.processes=0": ("hardware.processes", ["0", "greater than 0"]),
    "task=custom": ("task._target_", ["has no value", "task._target_="]),
    "optim.lr=???": ("optim.lr", ["has no value", "optim.lr="]),
    "task._target_=Bare": ("task._target_", ["'Bare'", "my_module.MyClass"]),
    "task.wdith=8": (
        "task.wdith",
        ["not a key of runner.tasks.digits.Digits", "Did you mean task.width?", "dropout, shift, width"],
    ),
    "task._target_=tests.unusual_tasks.Plain": (
        "task._target_",
        [
            "does not take width, dropout, shift, which task=digits sets",
            "Type task=custom task._target_=tests.unusual_tasks.Plain",
        ],
    ),
    "task=custom task._target_=tests.unusual_tasks.Plian": (
        "task._target_",
        ["Did you mean task._target_=tests.unusual_tasks.Plain?"],
    ),
    "task=custom task._target_=tests.unusual_tasks.Plain task.size=3": ("task.size", ["Its keys are: none"]),
    "task=custom task._target_=tests.unusual_tasks.Plain task.part._target_=a.B": ("task.part", ["Its keys are: none"]),
    "optim=custom optim._target_=torch.optim.RMSprop optim.alhpa=1": ("optim.alhpa", ["Did you mean optim.alpha?"]),
    "task=custm task.size=3": ("task", ["Did you mean task=custom?"]),
    "task=custom task.size=3": ("task._target_", ["has no value"]),
    "budget.epochs=null": ("budget", ["budget.epochs=10", "budget.updates=1000"]),
    "lr_scaling=linear": ("lr_scaling.reference", ["lr_scaling.reference=64"]),
    "batch=auto batch.per_device=null": ("batch.per_device", ["batch.per_device=8"]),
    "batch.size=63 hardware=2cpu accum=4": ("batch.size", ["63", "8", "batch.size=56", "batch.size=64"]),
    "hardware.processes=3 hardware.nodes=2 batch.size=66": ("hardware.processes", ["3", "2 nodes"]),
    "task.width=${nothing}": ("task.width", ["nothing"]),
    "task.width=[1": ("task.width", []),
    "accum": ("accum", ["="]),
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_command_line_is_one_line_that_says_what_to_type(typed: str) -> None:
    key, told = WRONG[typed]
    lines = problems(*typed.split(" "))
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{key}:"), lines[0]
    for text in told:
        assert text in lines[0]
    assert "Traceback" not in lines[0] and "pydantic" not in lines[0] and "full_key" not in lines[0]


@pytest.mark.parametrize("typed", ["", "accum=1", "hardware=2cpu batch.size=64", "seed=0", "optim.lr=0", "accum=64"])
def test_a_right_command_line_has_no_problem(typed: str) -> None:
    """The control of the tests of wrong ones."""
    assert problems(*typed.split()) == []


def test_all_problems_are_told_at_once_each_in_one_line() -> None:
    typed = ["+typo=1", "hardwear=2gpu", "precision=fp8x", "accum=-1", "optim.lr=fast", "batch.size=0", "seed=x"]
    lines = problems(*typed)
    keys = [line.partition(":")[0] for line in lines]
    assert sorted(keys) == sorted(["typo", "hardwear", "precision", "accum", "optim.lr", "batch.size", "seed"])


def test_a_problem_between_keys_is_told_beside_that_of_another_key() -> None:
    lines = problems("batch.size=63", "hardware=2cpu", "accum=4", "optim.lr=fast", "+typo=1")
    assert sorted(line.partition(":")[0] for line in lines) == ["batch.size", "optim.lr", "typo"]


def test_short_and_long_forms_of_hardware_are_the_same_plan() -> None:
    short, long = plan("hardware=3cpu", "batch.size=66"), plan("hardware.processes=3", "batch.size=66")
    assert short == long
    assert short.arithmetic.processes == 3
    assert short != plan("hardware=6cpu", "batch.size=66")


@pytest.mark.parametrize(
    ("choice", "device", "processes", "nodes"),
    [
        ("cpu", "cpu", 1, 1), ("8cpu", "cpu", 8, 1), ("3cpu", "cpu", 3, 1), ("gpu", "cuda", 1, 1), ("2gpu", "cuda", 2, 1),
        ("6gpu", "cuda", 6, 1), ("12gpu", "cuda", 12, 1), ("2node", "cpu", 2, 2), ("3node", "cpu", 3, 3), ("tpu8", "xla", 8, 1),
        ("tpu4", "xla", 4, 1),
    ],
)  # fmt: skip
def test_any_count_is_a_choice_of_hardware(choice: str, device: str, processes: int, nodes: int) -> None:
    hardware = plan(f"hardware={choice}", f"batch.size={24 * processes}").config.hardware
    assert (hardware.device.value, hardware.processes, hardware.nodes) == (device, processes, nodes)


def test_a_number_written_with_an_exponent_is_that_number() -> None:
    for written in ("1e-3", "0.001", "1.0e-3", ".001"):
        config = plan(f"optim.lr={written}").config
        assert config.optim.lr == 0.001 and isinstance(config.optim.lr, float)
    assert isinstance(yaml.safe_load("1e-3"), str)  # the control: plain YAML takes the same for a text


def test_an_interpolation_is_resolved_before_anybody_sees_it() -> None:
    free = ["task.width=${accum}", "task.layers=[[1,2],[3,[${seed}]]]"]
    config = plan(*MINE, *free, "accum=4", "seed=7").config
    assert config.task.arguments["width"] == 4
    assert config.task.arguments["layers"] == [[1, 2], [3, [7]]]
    layers = config.task.arguments["layers"]
    assert type(layers) is type(layers[0]) is type(layers[1][1]) is list


def test_a_tasks_own_keys_are_free_with_a_plus_and_without() -> None:
    assert plan(*MINE, "task.width=64") == plan(*MINE, "+task.width=64")
    assert plan(*MINE, "task.width=64").config.task.arguments == {"width": 64}
    assert plan(*MINE, "task.width=64").experiment != plan(*MINE, "task.width=32").experiment


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe `mine` in the folder that the command is started in."""
    folder = tmp_path / "start" / "recipes"
    folder.mkdir(parents=True)
    text = "defaults:\n  - override /hardware: 2cpu\naccum: 4\noptim:\n  lr: 1e-3\nbudget:\n  updates: 7\n"
    (folder / "mine.yaml").write_text("# @package _global_\n" + text)
    (folder / "bare.yaml").write_text("accum: 4\n")
    (folder / "quickstart.yaml").write_text("accum: 16\n")
    monkeypatch.chdir(folder.parent)
    return "recipe=mine"


def test_a_recipe_wins_over_the_defaults_and_the_command_line_over_the_recipe(recipe: str) -> None:
    def facts(*arguments: str) -> tuple[int, int, float, int | None]:
        c = plan(*arguments).config
        return c.accum, c.hardware.processes, c.optim.lr, c.budget.updates

    assert facts() == (1, 1, 0.002, None)
    assert facts(recipe) == (4, 2, 0.001, 7)
    assert facts(recipe, "accum=2") == facts("accum=2", recipe) == (2, 2, 0.001, 7)
    assert facts(recipe, "hardware=cpu") == (4, 1, 0.001, 7)
    assert facts(recipe, "optim.lr=0.1", "budget.updates=9") == (4, 2, 0.1, 9)


def test_a_recipe_needs_no_package_line(recipe: str) -> None:
    assert plan("recipe=bare").config.accum == 4


def test_recipes_are_found_in_the_project_the_variable_and_the_folder(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"from_{name}.yaml").write_text("accum: 8\n")
    assert problems("recipe=from_one") and problems("recipe=from_two")
    monkeypatch.setenv("RUNNER_RECIPES", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert [plan(f"recipe={n}").config.accum for n in ("from_one", "from_two", "mine")] == [8, 8, 4]
    quick = plan("recipe=quickstart").config
    assert (quick.budget.epochs, quick.accum) == (1, 1), "the project's own recipe wins over one of the same name"
    monkeypatch.chdir(tmp_path)
    assert "from_one, from_two" in problems(recipe)[0], "elsewhere `mine` is not there, and the others are offered"


def test_the_experiment_is_the_same_whatever_the_hardware_and_accum() -> None:
    """What tells a change of the experiment from one of the setup; seed and batch are its control."""
    base = plan()
    for same in ("hardware=2cpu", "accum=4", "sync=no_sync", "data.workers=2", "precision=bf16"):
        assert plan(same).experiment == base.experiment, same
    for other in ("seed=1", "batch.size=128", "optim.lr=1", "task.width=64", "budget.epochs=3"):
        assert plan(other).experiment != base.experiment, other
    assert plan("hardware=2cpu").setup != base.setup


def test_a_plan_is_the_same_after_json() -> None:
    made = plan("hardware=3cpu", "batch.size=66", "optim=sgd", "schedule=step", *MINE, "task.layers=[[1],[2]]")
    assert Plan.from_json(made.to_json()) == made
    changed = made.to_json().replace('"every": 1000', '"every": 1001')
    assert Plan.from_json(changed) != made  # the control: a single value that differs is seen
