"""Command lines with a slip of the hand: flags that there are not, words that are no overrides, values that cannot be read.

Each is answered in one line that says what to type, with exit code 2, in this process: nothing is started.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli import main
from runner.compose.loading import loader
from runner.compose.overrides import problems_of

# what is typed, how the line begins, and what else it tells
SLIPS: dict[tuple[str, ...], tuple[str, list[str]]] = {
    ("--foo",): ("--foo: is not a flag. ", ["--multirun, --cfg"]),
    ("--cgf", "job"): ("--cgf=job: is not a flag. ", ["Did you mean --cfg?"]),
    ("--multi", "seed=1,2"): ("--multi: is not a flag. ", ["Did you mean --multirun?"]),
    ("--cfg",): ("--cfg: needs a value. ", ["Type --cfg job"]),
    ("--cfg", "accum=3"): ("--cfg: needs a value. ", ["Type --cfg job"]),
    ("--cfg=jbo",): ("--cfg: 'jbo' is none of job, hydra, all. ", ["Type --cfg job"]),
    ("--info=plugin",): ("--info: 'plugin' is none of ", ["Type --info plugins"]),
    ("--multirun=3",): ("--multirun=3: --multirun takes no value. ", []),
    ("--cfg", "job", "--info", "all"): ("--cfg --info: cannot stand together. ", []),
    ("--resolve",): ("--resolve: ", ["Add --cfg job"]),
    ("--config-dir",): ("--config-dir: needs a value. ", []),
    ("--config-dir", "nowhere"): ("--config-dir: there is no folder ", ["nowhere"]),
    ("--accum=4",): ("--accum=4: is not a flag. ", ["Type accum=4, without the dashes"]),
    ("--accum", "4"): ("--accum=4: is not a flag. ", ["Type accum=4, without the dashes"]),
    ("--optim.lr", "0.1"): ("--optim.lr=0.1: is not a flag. ", ["Type optim.lr=0.1, without the dashes"]),
    ("--lr", "0.1"): ("--lr=0.1: is not a flag. ", ["Did you mean optim.lr=0.1?"]),
    ("--memory",): ("--memory: is not a flag. ", ["plan has it: python -m runner plan --memory"]),
    ("plan", "--jsn"): ("--jsn: is not a flag of plan. ", ["Did you mean --json?", "--config-dir"]),
    ("plan", "--cfg", "job"): ("--cfg=job: is not a flag of plan. ", []),
    ("hydra.searchpath=[file:///ours]",): ("hydra.searchpath: is for files ", ["Type --config-dir FOLDER"]),
    ("=3",): ("=3: names no key before the =. ", []),
    ("",): ("'': ", ["not set"]),
    ("accum",): ("accum: is neither a verb nor key=value. ", ["Type accum=..."]),
    ("accum=",): ("accum: '' ", ["integer"]),
    ("accum =4",): ("accum =4: has a space in it. ", ["Type accum=4"]),
    ("accum", "=", "4"): ("accum = 4: has a space in it. ", ["Type accum=4"]),
    ("accum", "=4"): ("accum =4: has a space in it. ", ["Type accum=4"]),
    ("accum=", "4"): ("accum= 4: has a space in it. ", ["Type accum=4"]),
    ("accum", "4"): ("accum 4: has a space in it. ", ["Type accum=4"]),
    ("accum:4",): ("accum:4: is neither ", ["Type accum=4"]),
    ("lr=0.1",): ("lr: is not a key ", ["Did you mean optim.lr?"]),
    ("4=accum",): ("4=accum: '4' cannot be the name of a key. ", []),
    ("hardware=2cpu", "plan"): ("plan: a verb stands first. ", ["Type python -m runner plan"]),
    ("comprae", "one", "two"): ("comprae: is neither ", ["Did you mean python -m runner compare?"]),
    ("here",): ("here: is neither ", ["python -m runner compare RUN RUN"]),
    ("optim.betas=[0.9,0.99",): ("optim.betas: [0.9,0.99 cannot be read: [ is not closed. ", []),
    ("optim.betas=0.9]",): ("optim.betas: 0.9] cannot be read: nothing was opened that ] closes. ", []),
    ("optim.betas=(0.9]",): ("optim.betas: (0.9] cannot be read: ( is closed by ]. ", []),
    ("task.name='x",): ("task.name: 'x cannot be read: the quote 'x is not closed. ", ["\"task.name='\\'x'\""]),
    ("-m", "accum=choice(1,2"): ("accum: choice(1,2 cannot be read: ( is not closed. ", []),
    ("--cfg", "job", "optim.betas=[0.9"): ("optim.betas: [0.9 cannot be read", []),
    ("--cfg", "job", "precision=fp8x"): ("precision: 'fp8x' is not one of its choices. ", ["bf16"]),
    ("--cfg", "job", "accum=1,2"): ("accum: 1,2 stands for several values. ", []),
    ("plan", "accum=1,2"): ("accum: 1,2 stands for several values. Type one of them, or quote ", []),
    ("+hardware=2cpu",): ("+hardware: hardware has a choice already, ", ["Type hardware=2cpu"]),
    ("task@x=digits",): ("task@x: a choice of task cannot be put elsewhere. ", ["Type task=digits"]),
    ("recipe=null",): ("recipe: is a group: choose one of its options by name. ", ["Leave it out to have none"]),
    ("seed=1\n2",): ("seed: ", []),
}  # fmt: skip


@pytest.mark.parametrize("typed", SLIPS, ids=" ".join)
def test_a_slip_is_one_line_that_says_what_to_type(
    typed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    begins, words = SLIPS[typed]
    assert main(list(typed)) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(begins)
    for word in words:
        assert word in line
    assert out == "" and [p.name for p in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(
    "typed",
    [
        ["--cfg=job", "accum=3"],
        ["accum=3", "-c", "job", "--resolve"],
        ["--cfg", "job", "--", "accum=3"],
        ["--cfg", "job", "accum= 3"],
        ["--cfg", "job", "accum=3", "+task.say='it\\'s [so'"],
        ["--cfg", "job", "accum=3", "task.names=[a,{b: c}]", "~log"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_control_what_is_well_formed_is_shown(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 0
    assert "accum: 3" in capsys.readouterr().out.splitlines()


def test_a_glob_of_choices_is_read() -> None:
    with loader([]) as using:
        assert problems_of("sync=glob(*_batch)", using) == []
        assert len(problems_of("sync=some_batch", using)) == 1
