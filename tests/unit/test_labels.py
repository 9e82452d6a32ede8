"""What pictures call runs: by the overrides that differ, as a sweep's table does; plain names where nothing tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.compare import png
from runner.compare.labels import LONGEST
from runner.compare.report import page_data
from runner.compare.session import compare
from tests.unit.test_bars import run


def sweep(folder: Path, texts: list[str]) -> list[str]:
    """The labels of runs whose overrides.yaml is each of `texts`."""
    for number, text in enumerate(texts):
        run(folder / str(number), 2**20, 0.1 + number, f"accum={number + 1}")
        (folder / str(number) / "overrides.yaml").write_text(text)
    return [r["label"] for r in page_data(compare([str(folder)]))["runs"]]


def test_runs_are_called_by_the_overrides_that_differ(tmp_path: Path) -> None:
    found = sweep(
        tmp_path, ["- recipe=mine\n- accum=1\n- seed=0\n", "- recipe=mine\n- accum=2\n- seed=0\n", "- accum=3\n"]
    )
    assert found == ["0: recipe=mine accum=1 seed=0", "1: recipe=mine accum=2 seed=0", "2: accum=3"]
    (tmp_path / "2" / "overrides.yaml").write_text("- recipe=mine\n- accum=3\n- seed=0\n")
    assert [r["label"] for r in page_data(compare([str(tmp_path)]))["runs"]] == [
        "0: accum=1",
        "1: accum=2",
        "2: accum=3",
    ]


@pytest.mark.parametrize("text", ["", "accum: 1\n", "- [\n", "- accum=1\n"])
def test_a_run_that_does_not_say_or_does_not_differ_keeps_its_name(text: str, tmp_path: Path) -> None:
    assert sweep(tmp_path, [text, text]) == ["0", "1"]


def test_a_label_is_one_short_line(tmp_path: Path) -> None:
    first, second = sweep(tmp_path, ["- 'task.say=one\n\n  two'\n", f"- task.say={'x' * 500}\n"])
    assert "\n" not in first and first.startswith("0: task.say=one")
    assert len(second) == LONGEST


def test_the_legend_of_the_picture_has_them(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    sweep(tmp_path, ["- accum=1\n", "- accum=2\n"])
    data = page_data(compare([str(tmp_path)]))
    png._draw_legend(figure, png._draw_curves(figure.subplots(), data), [r["label"] for r in data["runs"]])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["0: accum=1", "1: accum=2"]
