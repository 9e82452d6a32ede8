"""Folders that are damaged, foreign, unfinished or doubled: a clear line for each, and the rest is compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner import cli
from runner.compare.session import Comparison, compare
from runner.compare.verdict import Kind
from tests.commands import PROJECT
from tests.unit.compare_simulation import real


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    real(root / "a", "accum=4", "budget.updates=12")
    real(root / "b", "accum=4", "budget.updates=12")
    return root


@pytest.fixture
def root(two: Path, tmp_path: Path) -> Path:
    shutil.copytree(two, tmp_path / "outputs")
    return tmp_path / "outputs"


def reasons(found: Comparison) -> dict[str, str]:
    return {x.path.name: x.reason for x in found.left_out}


def still_compared(found: Comparison) -> bool:
    return [(v.a.name, v.b.name, v.kind) for v in found.verdicts] == [("a", "b", Kind.identical)]


def test_two_good_folders(root: Path) -> None:
    found = compare([str(root)])
    assert still_compared(found)
    assert found.left_out == []
    assert found.exit_code == 0


DAMAGE = {
    "a pipe for a status": (lambda p: _pipe(p / "status.json"), "status.json is no file"),
    "a folder for updates": (lambda p: _folder(p / "updates.jsonl"), "updates.jsonl is no file"),
    "a plan that links to itself": (lambda p: _loop(p / "plan.json"), "has no plan.json"),
    "no plan": (lambda p: (p / "plan.json").unlink(), "has no plan.json"),
    "no status": (lambda p: (p / "status.json").unlink(), "has no status.json"),
    "empty status": (lambda p: (p / "status.json").write_text(""), "status.json is not a run's status"),
    "foreign status": (lambda p: (p / "status.json").write_text('{"state": "ok"}'), "the state is 'ok'"),
    "plan is no JSON": (lambda p: (p / "plan.json").write_text("{"), "plan.json"),
    "plan of another program": (lambda p: (p / "plan.json").write_text('{"a": 1}'), "no plan of this version"),
    "plan is binary": (lambda p: (p / "plan.json").write_bytes(b"\xff\xfe\x00"), "plan.json"),
    "no updates": (lambda p: (p / "updates.jsonl").unlink(), "has no updates.jsonl (finished)"),
    "updates empty": (lambda p: (p / "updates.jsonl").write_text(""), "not a single update"),
    "updates half a line": (lambda p: (p / "updates.jsonl").write_text('{"update": 1, "lo'), "not a single update"),
    "updates foreign": (lambda p: (p / "updates.jsonl").write_text('{"step": 1}\n{"step": 2}\n'), "a row has no update"),
    "updates no JSON": (lambda p: (p / "updates.jsonl").write_text("loss,1\nloss,2\n"), "not a row: b'loss,1'"),
    "a line in the middle": (lambda p: _in_the_middle(p / "updates.jsonl"), "not a row"),
    "a word for a loss": (lambda p: _word(p / "updates.jsonl"), "'high' is no number"),
    "batches no JSON": (lambda p: (p / "batches.jsonl").write_text("?\n?\n"), "not a row"),
    "evals foreign": (lambda p: (p / "evals.jsonl").write_text('{"x": 1}\n'), "a row has no update"),
}  # fmt: skip


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _in_the_middle(path: Path) -> None:
    lines = path.read_text().splitlines(True)
    path.write_text("".join([*lines[:5], "}}{\n", *lines[5:]]))


def _word(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["loss"] = "high"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_the_rest_compared(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(root / "a", root / "c")
    damage, words = DAMAGE[name]
    damage(root / "c")
    found = compare([str(root)])
    assert words in reasons(found)["c"]
    assert still_compared(found)
    assert found.exit_code == 2
    assert cli.main(["compare", str(root)]) == 2
    out = capsys.readouterr().out
    assert words in out
    assert "Traceback" not in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder(root: Path) -> None:
    (root / "a" / "updates.jsonl").chmod(0)
    assert "cannot be read: Permission denied" in reasons(compare([str(root)]))["a"]


def test_folders_that_hold_no_run(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    names = ["empty", "photos", "file", "gone", "none*", "a**b", "n" * 300, "loop"]
    found = compare([str(root), *(str(tmp_path / n) for n in names)])
    assert reasons(found) == {
        "empty": "is empty",
        "photos": "holds no run: no plan.json, no status.json, no updates.jsonl here or in a folder below",
        "file": "is a file; give the run's folder",
        "gone": "there is no such file or folder",
        "none*": "no file or folder matches this pattern",
        "a**b": "Invalid pattern: '**' can only be an entire path component",
        "n" * 300: "cannot be read: File name too long",
        "loop": "there is no such file or folder",
    }
    assert still_compared(found)


def test_patterns_and_one_run_named_twice(root: Path) -> None:
    found = compare([str(root / "[ab]"), str(root / "a"), str(root / "." / "b")])
    assert still_compared(found)
    assert found.exit_code == 0


def test_a_run_that_goes_on_is_left_out_and_one_whose_process_is_gone_is_not(root: Path) -> None:
    shutil.copytree(root / "a", root / "c")
    status = {"state": "running", "pid": os.getpid(), "host": os.uname().nodename}
    (root / "c" / "status.json").write_text(json.dumps(status))
    found = compare([str(root)])
    assert reasons(found) == {"c": "still running, at update 12 of 12"}
    assert still_compared(found)
    status["pid"] = 2**22 + 1  # larger than any process id on Linux
    (root / "c" / "status.json").write_text(json.dumps(status))
    lines = (root / "c" / "updates.jsonl").read_text().splitlines(True)
    (root / "c" / "updates.jsonl").write_text("".join(lines[:7]) + lines[7][:30])
    found = compare([str(root)])
    verdict = next(v for v in found.verdicts if v.b.name == "c")
    assert (verdict.kind, verdict.first) == (Kind.different, 8)
    assert "its process is gone" in verdict.reason
    assert "the last line of updates.jsonl is cut" in verdict.b.notes


def test_two_copies_of_one_run_are_no_two_runs(root: Path) -> None:
    shutil.copytree(root / "a", root / "copy of a")
    found = compare([str(root)])
    assert "is a copy of" in reasons(found)["copy of a"]
    assert still_compared(found)
    assert found.exit_code == 2
    alone = compare([str(root / "a"), str(root / "copy of a")])
    assert alone.verdicts == []
    assert alone.exit_code == 2


def test_a_resumed_run_counts_its_last_rows(root: Path) -> None:
    path = root / "b" / "updates.jsonl"
    lines = path.read_text().splitlines(True)
    changed = json.loads(lines[5])
    changed["loss"] *= 2
    path.write_text("".join([*lines[:5], json.dumps(changed) + "\n", *lines[4:]]))  # update 6 wrong, then 5 to 12 anew
    found = compare([str(root)])
    assert still_compared(found)
    assert "resumed before update 5" in found.runs[1].notes
    # the control: a resumed run that goes another way
    path.write_text("".join([*lines, *lines[4:5], json.dumps(changed) + "\n", *lines[6:]]))
    verdict = compare([str(root)]).verdicts[0]
    assert (verdict.kind, verdict.first) == (Kind.different, 6)


def test_a_missing_row_in_between(root: Path) -> None:
    path = root / "b" / "updates.jsonl"
    lines = path.read_text().splitlines(True)
    path.write_text("".join(lines[:6] + lines[7:]))
    verdict = compare([str(root)]).verdicts[0]
    assert (verdict.kind, verdict.first) == (Kind.different, 7)
    assert "1 update without a row, the first at" in " ".join(verdict.b.notes)


@pytest.mark.parametrize(
    "name", ["with space", "ünï 名前", "<b>bold</b>&amp;", "[red]markup[/red]", "-dash", "quote'\""]
)
def test_odd_names_are_shown_as_they_are(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = (root / "b").rename(root / name.replace("/", "∕"))
    assert cli.main(["compare", str(root), "--report", str(root / "report.html")]) == 0
    assert folder.name in capsys.readouterr().out
    page = (root / "report.html").read_text()
    assert "<b>bold" not in page
    assert cli.main(["compare", "--json", str(root)]) == 0
    assert folder.name in {r["name"] for r in json.loads(capsys.readouterr().out)["runs"]}


@pytest.mark.parametrize(
    ("name", "shown"), [("two\nlines\r", r"two\nlines\r"), ("\x1b[31mred", r"\x1b[31mred"), ("\udcff", r"\udcff")]
)
def test_names_stay_in_their_line_and_drive_no_terminal(
    root: Path, name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "b").rename(root / name)
    shutil.copytree(root / name, root / f"copy of {name}")
    assert cli.main(["compare", str(root), "--report", str(root / "report.html")]) == 2
    out = capsys.readouterr().out
    (told,) = (line for line in out.splitlines() if "is a copy of" in line)
    assert shown in told
    assert sum(shown in line for line in out.splitlines()) >= 2, "in the table as well"
    assert "\x1b" not in out and "lines\r" not in out


def test_a_folder_without_permission_is_told_and_the_rest_compared(root: Path) -> None:
    shutil.copytree(root / "a", root / "locked")
    (root / "locked").chmod(0)
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if drop and shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv")
    command = [*drop, sys.executable, "-m", "runner", "compare", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    (root / "locked").chmod(0o755)
    assert "locked: cannot be read: Permission denied" in done.stdout, done.stderr
    assert "identical" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "compare needs the folders"),
        (["--colour"], "compare does not know --colour"),
        (["a", "--tolerance"], "--tolerance needs a value"),
        (["a", "--tolerance", "much"], "'much' is no relative distance"),
        (["a", "--tolerance=-1"], "'-1' is no relative distance"),
        (["a", "--report", "/dev/null/x.html"], "--report: /dev/null/x.html cannot be written: Not a directory"),
        (["a", "--report", "/proc/x.html"], "--report: /proc/x.html cannot be written: "),
        (["a", "--png", "/dev"], "--png: /dev cannot be written: it is a folder"),
    ],
)
def test_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_picture_for_where_no_browser_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn by matplotlib, in the page's colours; names are text, whatever is in them."""
    pytest.importorskip("matplotlib")
    (root / "b").rename(root / "_$x^$ <b> 名前")
    assert cli.main(["compare", str(root), "--png", str(root / "new" / "curves.png")]) == 0
    assert "png: " in capsys.readouterr().out
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    from runner.compare.report import COLORS

    image = imread(root / "new" / "curves.png")[..., :3]
    assert image.shape[0] > 600
    colors = COLORS[:-1]  # the edges of letters may be as grey as the last one
    drawn = [c for c in colors if (abs(image - to_rgb(c)).max(axis=2) < 0.01).any()]
    assert drawn == list(COLORS[:2]), "two runs, and no third"


def test_a_picture_without_matplotlib_is_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["compare", str(root), "--png", str(root / "x.png")]) == 2
    assert 'pip install "samestep[png]"' in capsys.readouterr().err
    assert not (root / "x.png").exists()


def test_one_run_is_nothing_to_compare(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(root / "a")]) == 2
    assert "it takes two runs" in capsys.readouterr().out


def test_compare_imports_no_torch(root: Path) -> None:
    code = (
        "import sys; from runner import cli; code = cli.main(['compare', sys.argv[1], '--report', sys.argv[1] + '/r.html']);"
        "assert not {'torch', 'hydra', 'omegaconf', 'sklearn'} & set(sys.modules), 'too much was imported'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
