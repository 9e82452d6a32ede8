"""Where recipes come from: folders given on the command line, packages that are never imported, and which one wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner import plan_command
from runner.compose.app import check, compose_one, run
from runner.compose.arguments import parse
from runner.compose.entry import Asked, Job
from runner.errors import ConfigError
from runner.plan import Plan
from runner.recipes import keep_reference, list_recipes, recipes


@pytest.fixture(autouse=True)
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that commands are started in."""
    folder = tmp_path / "start"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RUNNER_RECIPES", raising=False)
    return folder


def plan(*arguments: str) -> Plan:
    return compose_one(parse(arguments))


def write(folder: Path, name: str, accum: int, line: str = "# Some recipe.") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(f"{line}\naccum: {accum}\n")
    return folder


@pytest.mark.parametrize("inside", ["recipes", "recipe", "."])
def test_a_folder_given_on_the_command_line_may_hold_recipes(inside: str, tmp_path: Path) -> None:
    write(tmp_path / "given" / inside, "mine", 4)
    (tmp_path / "given" / "config.yaml").write_text("no recipe, whatever it is\n")
    assert plan("--config-dir", str(tmp_path / "given"), "recipe=mine").config.accum == 4
    assert plan(f"--config-dir={tmp_path / 'given'}", "recipe=mine", "accum=2").config.accum == 2
    assert "config" not in {r.name for r in recipes([tmp_path / "given"])}
    with pytest.raises(ConfigError, match="'mine'"):
        plan("recipe=mine")  # the control: the folder of an earlier command is forgotten


def test_the_first_of_a_name_is_taken_and_the_others_are_listed_as_hidden(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(start / "recipes", "mine", 16)
    write(tmp_path / "given" / "recipes", "mine", 8)
    given = ("--config-dir", str(tmp_path / "given"))
    assert plan("recipe=mine").config.accum == 16
    assert plan(*given, "recipe=mine").config.accum == 8
    monkeypatch.setenv("RUNNER_RECIPES", str(write(tmp_path / "team", "mine", 4)))
    write(tmp_path / "team", "quickstart", 32)
    assert plan(*given, "recipe=mine").config.accum == 4
    assert plan("recipe=quickstart").config.accum == 1, "what is shipped means the same everywhere"
    assert list_recipes(["--json", *given]) == 0
    listed = [(r["name"], r["from"], r["hidden_by"]) for r in json.loads(capsys.readouterr().out)]
    assert [entry for entry in listed if entry[0] in ("mine", "quickstart")] == [
        ("mine", "RUNNER_RECIPES", None),
        ("mine", "--config-dir", "RUNNER_RECIPES"),
        ("mine", "working folder", "RUNNER_RECIPES"),
        ("quickstart", "samestep", None),
        ("quickstart", "RUNNER_RECIPES", "samestep"),
    ]
    list_recipes([])
    assert "(hidden by the one of samestep)" in capsys.readouterr().out


def test_a_package_with_recipes_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    write(site / "team_of_a_test" / "shared" / "recipes", "theirs", 4)
    (site / "team_of_a_test" / "__init__.py").write_text("raise SystemError('imported')\n")
    info = site / "team_of_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-of-a-test\nVersion: 1\n")
    points = "[samestep.recipes]\nany = team_of_a_test.shared.recipes\nnone = not_there_of_a_test.recipes\n"
    (info / "entry_points.txt").write_text(points)
    with pytest.raises(ConfigError, match="'theirs'"):
        plan("recipe=theirs")
    monkeypatch.syspath_prepend(str(site))
    assert plan("recipe=theirs").config.accum == 4


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("# @package _global_\n# What it does.\naccum: 1\n", "What it does."),
        ("#\n#   Indented, after an empty one.\n", "Indented, after an empty one."),
        ("accum: 1\n# too late\n", ""),
        ("# @package _global_\naccum: 1\n", ""),
    ],
)
def test_the_doc_line_is_the_first_comment_that_says_something(text: str, about: str, start: Path) -> None:
    (start / "recipes").mkdir()
    (start / "recipes" / "mine.yaml").write_text(text)
    assert [r.about for r in recipes() if r.name == "mine"] == [about]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "recipe=quikstart"], "Did you mean recipe=quickstart?"),
        (["run", "recipe=quickstart", "--to"], "--to: needs a folder"),
        (["run", "recipe=quickstart", "--into=x"], "--into=x: is not a flag of keep. It takes --to FOLDER"),
        (["recipe=quickstart"], "Type: python -m runner keep RUN... recipe=NAME"),
    ],
)
def test_what_keep_cannot_do_is_told_in_a_line(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keep_reference(arguments)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("# It.\noptim:\n\tlr: 1\n", "recipes/mine.yaml, line 3: ", "Indent by spaces"),
        ("# It.\noptim: [lr: 0.01\n", "recipes/mine.yaml, line 3: ", "that begins in line 2)"),
        ("accum: 1\naccum: 2\n", "recipes/mine.yaml, line 2: ", "accum"),
        ("- accum\n", "recipes/mine.yaml: ", "holds no keys with values"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line_with_its_place(
    text: str, place: str, words: str, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(start / "recipes", "sound", 2)
    (start / "recipes" / "mine.yaml").write_text(text)
    asked = [lambda: plan("recipe=mine"), lambda: check(parse(["recipe=mine", "-m", "seed=1,2"]), lambda _: None)]
    for ask in asked:
        with pytest.raises(ConfigError) as caught:
            ask()
        (line,) = str(caught.value).splitlines()
        assert line.startswith(place) and words in line
    assert plan("recipe=sound").config.accum == 2  # the control
    list_recipes([])
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"cannot be read: {place}" in listed["recipe=mine"]
    assert "cannot be read" not in listed["recipe=sound"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("override /task: digist", ["chooses task: digist, which there is not", "Did you mean digits?", "mixture"]),
        ("override /hardware: 2cup", ["chooses hardware: 2cup, ", "{processes}cpu"]),
        ("override /tsak: digits", ["names tsak, which is no group", "Did you mean /task?", "hardware"]),
        ("override task: digits", ["names task, without a slash before it", "Write /task"]),
        ("task: digits", ["names task, without a slash before it", "Write /task"]),
        ("/task: mixture", ["chooses a second task", "Write override /task"]),
        ("base", ["chooses recipe: base, which there is not", "quickstart"]),
        ("override /hydra/launcher: jobilb", ["chooses hydra/launcher: jobilb", "basic"]),
    ],
)
def test_a_recipe_whose_defaults_cannot_be_followed_is_one_line_with_its_place(
    entry: str, words: list[str], start: Path
) -> None:
    write(start / "recipes", "sound", 2)
    (start / "recipes" / "mine.yaml").write_text(f"# It.\ndefaults:\n  - {entry}\naccum: 2\n")
    typed = ["recipe=mine"], ["recipe=mine", "-m", "seed=1,2"], ["-m", "recipe=mine,sound"]
    asked = [lambda: plan("recipe=mine"), *(lambda t=t: check(parse(t), lambda _: None) for t in typed)]
    for ask in asked:
        with pytest.raises(ConfigError) as caught:
            ask()
        (line,) = str(caught.value).splitlines()
        assert line.startswith(
            ("recipes/mine.yaml, line 3: its defaults list ", "recipes/mine.yaml: its defaults list ")
        )
        for word in words:
            assert word in line
    check(parse(["-m", "recipe=sound", "seed=1,2"]), lambda _: None)  # the control


def test_overrides_of_a_recipe_stand_last(start: Path) -> None:
    (start / "recipes").mkdir()
    text = "# It.\ndefaults:\n  - override /task: mixture\n  - _self_\n  - /link@more: none\n"
    (start / "recipes" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^recipes/mine.yaml: its defaults list has .* Overrides must stand last$"):
        plan("recipe=mine")


def test_a_choice_of_a_given_folder_that_cannot_be_read_is_one_line(start: Path) -> None:
    (start / "mine" / "task").mkdir(parents=True)
    (start / "mine" / "task" / "nine.yaml").write_text("_target_: x\nwidth: [9\n")
    with pytest.raises(ConfigError, match=r"^mine/task/nine.yaml, line 3: [^\n]*$"):
        plan("--config-dir", "mine", "task=nine")


@pytest.mark.parametrize(
    ("typed", "note"),
    [
        (["recipe=mine"], "would start 6 jobs, over seed, optim.lr;"),
        (["recipe=mine", "seed=7"], "would start 3 jobs, over optim.lr;"),
        (["recipe=mine", "seed=7", "optim.lr=1"], ""),
        (["recipe=mine", "seed=7", "++optim.lr=1"], ""),
        (["recipe=quickstart"], ""),
    ],
)
def test_plan_says_that_a_recipe_sweeps(
    typed: list[str], note: str, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(start / "recipes", "mine", 1)
    with (start / "recipes" / "mine.yaml").open("a") as file:
        file.write("hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1', optim.lr: '1,2,3'}}}\n")
    assert plan_command.run(typed) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert note in last and last.startswith("note: this recipe") is bool(note)
    assert plan_command.run([*typed, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["config"]["accum"] == 1
    assert note in told.err and bool(told.err) is bool(note)


def test_a_folder_of_recipes_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write(tmp_path / "team", "mine", 4)
    monkeypatch.setenv("RUNNER_RECIPES", f"{tmp_path / 'taem'}:{there}")
    line = f"RUNNER_RECIPES names {tmp_path / 'taem'}, which is no folder"
    list_recipes(["--json"])
    told = capsys.readouterr()
    assert told.err == f"note: {line}\n" and "mine" in {r["name"] for r in json.loads(told.out)}
    for ask in (lambda: plan("recipe=theirs"), lambda: keep_reference(["run", "recipe=theirs"])):
        with pytest.raises(ConfigError, match=line):
            ask()
    monkeypatch.setenv("RUNNER_RECIPES", str(there))
    list_recipes([])
    assert capsys.readouterr().err == ""


class Collected(list[float]):
    """Runs no job, and notes the learning rate of each."""

    def __call__(self, job: Job) -> float | None:
        self.append(job.plan.config.optim.lr)
        return None

    def together(self, jobs: Sequence[Job]) -> list[float | None]:
        return [self(job) for job in jobs]

    def came_back(self, jobs: Sequence[Asked]) -> None:
        raise NotImplementedError("nothing runs elsewhere")


@pytest.mark.parametrize(
    ("typed", "rates"), [(["optim.lr=9"], [9.0]), (["-m", "optim.lr=8,9"], [8.0, 9.0]), ([], [1.0, 2.0, 3.0])]
)
def test_a_key_that_is_typed_takes_the_place_of_the_recipes_sweep(
    typed: list[str], rates: list[float], start: Path
) -> None:
    text = "# It.\nhydra: {mode: MULTIRUN, sweeper: {params: {optim.lr: '1,2,3'}}}\n"
    (start / "recipes").mkdir()
    (start / "recipes" / "mine.yaml").write_text(text)
    jobs = Collected()
    run(parse(["recipe=mine", *typed]), jobs, lambda folder, apart: None)
    assert jobs == rates
