"""Folders that a node's killed command has left: removed or named by the next one, and never while the owner lives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from runner.launch.leavings import Kept, sweep


def kept(text: str, sent: int) -> Kept:
    made = Kept(1)
    made.folder.batches.write_text(text)
    made.sent(sent)
    return made


def test_what_is_removed_what_is_named_and_what_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bare, done, cut, unsent = Kept(1), kept("a\nb\n", 4), kept("a\nb", 2), kept("a\nb\n", 2)
    assert [k.holds_rows() for k in (bare, done, cut, unsent)] == [False, False, False, True]
    strange = tmp_path / "samestep-node-1-of-somebody"
    strange.mkdir()
    (tmp_path / "samestep-node-1-link").symlink_to(done.folder.path)
    everything = set(tmp_path.iterdir())
    assert sweep() == []
    assert set(tmp_path.iterdir()) == everything, "the owners live"
    for owner in (bare, done, cut, unsent):
        owner.leave()
    for _ in range(2):
        assert sweep() == [unsent.folder.path], "named, each time"
        assert {p.name for p in tmp_path.iterdir()} == {
            strange.name,
            "samestep-node-1-link",
            unsent.folder.path.name,
        }


def test_who_ends_well_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept("a\n", 2).remove()
    assert not list(tmp_path.iterdir())
