"""Rows: written whole, read back as they were, also where numbers are none and where the last line was cut."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from runner import records
from runner.errors import RecordError
from runner.records import BatchRow, EvalRow, UpdateRow

NUMBERS = [0.0, -0.0, 1.5, 1e-300, 1e300, 0.1 + 0.2, 2**53 + 1.0, math.nan, math.inf, -math.inf, None]


def batch(loss: float | None = 1.0, update: int = 1) -> BatchRow:
    return BatchRow(update, 2, 3, 4, loss, 5.0, 0.25, True)


def update(loss: float | None = 1.0, norm: float | None = 2.0) -> UpdateRow:
    return UpdateRow(1, 1, loss, 4.0, 0.1, norm, 0.5, 4, "abcd", 1, 16, False, None, 2**40)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_come_back_as_they_were(tmp_path: Path, number: float | None) -> None:
    file = tmp_path / "rows.jsonl"
    records.append(file, [batch(number), update(number, number), EvalRow(1, 1, number, 2.0, {"accuracy": number})])
    rows = list(records.read(file))
    found = [rows[0]["loss"], rows[1]["loss"], rows[1]["grad_norm"], rows[2]["loss"], rows[2]["accuracy"]]
    for value in found:
        if number is not None and math.isnan(number):
            assert math.isnan(value)
        else:
            assert (value, type(value)) == (number, type(number))
    assert rows[0]["seconds"] == 0.25
    assert rows[1]["digest"] == "abcd"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_lines_are_plain_json(tmp_path: Path, number: float) -> None:
    """Any reader of JSON takes them: no bare NaN, one object a line."""
    file = tmp_path / "rows.jsonl"
    records.append(file, [update(number), batch(number)])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()]
    assert [r["loss"] for r in rows] == [{math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")] * 2


def test_columns_are_those_of_the_design() -> None:
    """Others read these files: a renamed column breaks them."""
    found = [
        list(json.loads(records.encode(row))) for row in (batch(), update(), EvalRow(1, 1, 0.5, 2.0, {"accuracy": 1.0}))
    ]
    assert found[0] == ["update", "micro", "rank", "epoch", "loss", "weight", "seconds", "synced"]
    assert found[1] == [
        "update", "epoch", "loss", "weight", "lr", "grad_norm", "seconds", "items", "digest", "collectives", "bytes",
        "skipped", "scale", "peak_memory",
    ]  # fmt: skip
    assert found[2] == ["update", "epoch", "loss", "weight", "accuracy"]


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    """Cut at any byte: the rows before it are all there, and nothing else is."""
    file, cut = tmp_path / "rows.jsonl", tmp_path / "cut.jsonl"
    records.append(file, [batch(float(n), n) for n in range(3)])
    data = file.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        whole = sum(end <= size + 1 for end in ends)  # a row without its newline is a whole row, too
        assert [r["update"] for r in records.read(cut)] == list(range(whole))


@pytest.mark.parametrize("damage", ['{"update": 1, "lo', "", "nonsense", "[1, 2]", "7", "null"])
def test_a_damaged_line_within_is_an_error(tmp_path: Path, damage: str) -> None:
    """The control: only the last line may be cut. An empty line is none."""
    file = tmp_path / "rows.jsonl"
    records.append(file, [batch()])
    with file.open("a") as out:
        out.write(damage + "\n")
    records.append(file, [batch(update=2)])
    if not damage:
        assert [r["update"] for r in records.read(file)] == [1, 2]
        return
    with pytest.raises(RecordError, match=r"rows\.jsonl: line 2 is not a row"):
        list(records.read(file))


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.touch()
    assert list(records.read(file)) == []


def test_nothing_is_written_for_no_rows(tmp_path: Path) -> None:
    records.append(tmp_path / "rows.jsonl", [])
    assert not (tmp_path / "rows.jsonl").exists()


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Four processes append at once: every row is there, whole."""
    file = tmp_path / "rows.jsonl"
    children = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for n in range(50):
                    records.append(file, [batch(float(rank), 10 * n + i) for i in range(10)])
                os._exit(0)
            finally:
                os._exit(1)  # whatever happened: pytest goes on in the parent only
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    rows = list(records.read(file))
    for rank in range(4):
        assert [r["update"] for r in rows if r["loss"] == rank] == list(range(500))
