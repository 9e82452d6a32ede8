"""The exit code of `compare`, as docs/compare.md says it: 0 all the same, 1 something differs, 2 something has no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli import main
from tests.unit.test_bars import run

JOBS = {"a1": (1, 0), "b1": (4, 0), "a2": (1, 1), "b2": (4, 1), "worse": (2, 0)}  # accum, seed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, (accum, seed) in JOBS.items():
        run(tmp_path / name, 2**20, 0.1, "batch=observed", "batch.size=4", f"accum={accum}", f"seed={seed}")
    rows = tmp_path / "worse" / "updates.jsonl"
    rows.write_text(rows.read_text().replace('"lr": 0.001', '"lr": 0.002'))
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        ("a1 b1", 0, "identical"),
        ("a1 b1 a2 b2", 0, "not comparable a1 and a2"),  # two experiments, each with two runs
        ("a1 a2", 2, "not comparable a1 and a2"),  # a sweep over seeds, or two named runs
        ("a1 b1 a2", 2, "identical"),
        ("a1", 2, "nothing to compare"),
        ("nowhere", 2, "nothing to compare"),
        ("a1 b1 empty", 2, "left out empty"),
        ("a1 worse", 1, "different a1 and worse"),
        ("a1 worse a2 empty", 1, "left out empty"),
        (".", 1, "different a1 and worse"),
        ("a1 b1 --report full", 2, ""),
    ],
)
def test_the_exit_code(typed: str, code: int, words: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *typed.split()]) == code
    assert words in capsys.readouterr().out


def test_a_page_that_cannot_be_written_is_no_verdict(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert main(["compare", "a1", "b1", "--report", "page.html"]) == 0, "the control"
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert main(["compare", "a1", "b1", "--report", "page.html"]) == 2
    assert "cannot write page.html: No space left on device" in capsys.readouterr().err
