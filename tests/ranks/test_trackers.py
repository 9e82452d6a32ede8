"""Trackers: every row arrives, once, with its counters; one tracker run for each run folder; finished however a run ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.commands import Done, rows, runner, started, status, tiny, until, workshop
from tests.offline import WandbRun, read_wandb, tensorboard_curves, wandb_run

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'samestep[{package}]'")


TASK = '''
import sys
from mytask import MyTask

class Late(MyTask):
    """Fails on rank 1 at its sixth micro-batch, if it is to; says what is loaded where it runs."""
    def __init__(self, fall=False, **told):
        super().__init__(**told)
        self.fall, self.count = fall, 0
    def loss(self, model, batch):
        self.count += 1
        if self.count == 3:
            print("loaded", [m for m in ("wandb", "torch") if m in sys.modules], flush=True)
        if self.fall and self.rank == 1 and self.count == 6:
            raise ValueError("late trouble")
        return super().loss(model, batch)
'''


def shop(folder: Path) -> Path:
    start = workshop(folder)
    (start / "late.py").write_text(TASK)
    return start


def late(processes: int = 2, updates: int = 8) -> list[str]:
    return [*tiny(processes=processes, updates=updates), "task._target_=late.Late"]


def expected(run: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of a file as a tracker should have them: with both counters, without what is null or no number."""
    arithmetic = json.loads((run / "plan.json").read_text())["arithmetic"]
    window = arithmetic["processes"] * arithmetic["accum"]
    found = []
    for row in rows(run / f"{kind}s.jsonl" if kind != "batch" else run / "batches.jsonl"):
        at = (row["update"] - 1) * window + row["micro"] + 1 if kind == "batch" else row["update"] * window
        found.append({**{k: v for k, v in row.items() if v is not None and k != "digest"}, "batch": at})
    return found


def assert_complete(tracked: WandbRun, run: Path, least: int) -> None:
    """Every row of the run's files is in the tracker's, in order and exactly."""
    for kind in ("batch", "update", "eval"):
        assert tracked.rows(kind) == expected(run, kind), kind
    assert len(tracked.history) == sum(len(expected(run, kind)) for kind in ("batch", "update", "eval"))
    assert len(tracked.rows("batch")) >= least


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Four processes, two micro-batches each in a window, tracked offline; the environment asks for something else."""
    start = shop(tmp_path_factory.mktemp("four") / "start")
    arguments = [
        *late(processes=4),
        "accum=2",
        "optim.lr=1e-3",
        "eval.every=4",
        "tracker=wandb",
        "tracker.project=attic",
    ]
    return runner(start, *arguments, WANDB_MODE="disabled", WANDB_DIR="elsewhere").expect(0)


@needs("wandb")
def test_four_processes_are_one_run_of_wandb(four: Done) -> None:
    run = four.run()
    assert len(list(four.folder.rglob("*.wandb"))) == 1
    assert {p.name for p in four.folder.iterdir()} == {"outputs", "mytask.py", "late.py"}, (
        "nothing stray beside the runs"
    )
    tracked = wandb_run(run)
    plan = json.loads((run / "plan.json").read_text())
    assert tracked.config["world_size"] == 4
    assert tracked.config["plan"]["arithmetic"] == plan["arithmetic"], "with what is known since the data are loaded"
    assert (tracked.group, tracked.job_type, tracked.project) == (plan["experiment"], plan["setup"], "attic")
    assert tracked.name == run.name


@needs("wandb")
def test_every_row_is_read_back_from_the_offline_file(four: Done) -> None:
    run = four.run()
    tracked = wandb_run(run)
    assert_complete(tracked, run, least=8 * 8)
    assert len(tracked.rows("eval")) == 2
    assert "positive" in tracked.rows("eval")[0]
    assert tracked.exit_code == 0
    assert tracked.axes == {"batch/*": "batch", "update/*": "update", "eval/*": "update"}
    assert all({"batch", "update"} <= row.keys() for row in tracked.history), "each row has both counters"
    assert {r["batch"] for r in tracked.rows("batch")} == set(range(1, 65))


@needs("wandb")
def test_the_reading_sees_what_is_missing(four: Done, tmp_path: Path) -> None:
    """The control of the test above: the same file, cut short."""
    (file,) = four.folder.rglob("*.wandb")
    (tmp_path / "cut.wandb").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    cut = read_wandb(tmp_path / "cut.wandb")
    assert cut.exit_code is None
    assert 0 < len(cut.history) < len(wandb_run(four.run()).history)
    with pytest.raises(AssertionError):
        assert_complete(cut, four.run(), least=1)


@needs("wandb")
def test_the_configuration_arrives_resolved_and_plain(four: Done) -> None:
    run = four.run()
    tracked = dict(wandb_run(run).config)
    for added in ("plan", "world_size", "_wandb"):
        del tracked[added]
    written = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))
    assert isinstance(written, dict)
    for section, value in written.items():
        if isinstance(value, dict):  # a default that the schema fills in may be more than the file has
            assert tracked[section].items() >= value.items(), section
        else:
            assert tracked[section] == value, section
    assert tracked["optim"]["lr"] == 0.001


@needs("wandb")
def test_ranks_do_not_load_the_tracker(four: Done) -> None:
    for rank in range(4):
        said = (four.run() / "logs" / f"rank-{rank}.log").read_text()
        assert "loaded ['torch']" in said


@needs("wandb")
def test_a_failed_run_is_finished_with_all_its_rows(tmp_path: Path) -> None:
    done = runner(shop(tmp_path / "start"), *late(), "task.fall=true", "tracker=wandb").expect(1)
    tracked = wandb_run(done.run())
    assert status(done.run())["state"] == "failed"
    assert_complete(tracked, done.run(), least=2 * 4)
    assert tracked.exit_code == 1


@needs("wandb")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_run_broken_off_is_finished_with_all_its_rows(number: int, tmp_path: Path) -> None:
    with started(shop(tmp_path / "start"), *late(updates=100_000), "task.pause=0.01", "tracker=wandb") as command:
        wait = "20 updates are written"
        until(lambda: [f for f in command.folder.rglob("updates.jsonl") if len(rows(f)) > 20], 60, wait)
        os.killpg(command.process.pid, number)
        done = command.wait()
    tracked = wandb_run(done.run())
    assert done.code == 128 + number
    assert status(done.run())["state"] == "interrupted"
    assert_complete(tracked, done.run(), least=2 * 20)
    assert tracked.exit_code == 130


@needs("wandb")
def test_a_sweep_over_seeds_gives_a_run_of_wandb_for_each_job(tmp_path: Path) -> None:
    done = runner(shop(tmp_path / "start"), *late(updates=3), "tracker=wandb", "-m", "seed=0,1,2").expect(0)
    tracked = [wandb_run(run) for run in done.runs()]
    assert [t.config["seed"] for t in tracked] == [0, 1, 2]
    assert len({t.id for t in tracked}) == 3
    assert len({t.job_type for t in tracked}) == 1, "one setup"
    assert len({t.group for t in tracked}) == 3, "a seed is part of the experiment"
    for run, one in zip(done.runs(), tracked, strict=True):
        assert_complete(one, run, least=2 * 3)
        assert one.name == f"{run.parent.name}/{run.name}"


LOADED = """
import sys
from runner.cli import main
code = main(sys.argv[1:])
print("loaded", [m for m in ("wandb", "tensorboard", "mlflow", "torch") if m in sys.modules])
sys.exit(code)
"""


@needs("wandb")
@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [([], []), (["tracker=wandb", "tracker.mode=disabled"], []), (["tracker=wandb"], ["wandb"])],
    ids=["local", "disabled", "wandb"],
)
def test_a_tracker_is_loaded_only_when_asked_for(arguments: list[str], loaded: list[str], tmp_path: Path) -> None:
    done = runner(shop(tmp_path / "start"), *late(processes=1, updates=1), *arguments, program=["-c", LOADED]).expect(0)
    assert f"loaded {loaded}" in done.out
    assert (done.run() / "wandb").exists() == bool(loaded)


ABSENT = """
import sys
from runner.cli import main
from runner.tracker import check
check._PACKAGES.update({"wandb": "not_there", "mlflow": "not_there", "tensorboard": "not_there"})
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "mlflow"])
def test_a_missing_package_is_one_line_before_anything_starts(name: str, tmp_path: Path) -> None:
    start = shop(tmp_path / "start")
    (start / "not_there").mkdir()  # such as the folder that wandb leaves behind: no package
    done = runner(start, *late(), f"tracker={name}", program=["-c", ABSENT]).expect(2)
    assert done.lines() == [
        f'tracker={name}: the package not_there is not installed. Install it: pip install "samestep[{name}]"'
    ]
    assert done.runs() == []


@needs("wandb")
def test_a_tracker_that_cannot_start_fails_the_run_in_one_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    arguments = [*late(), "tracker=wandb", "tracker.mode=online"]
    done = runner(shop(tmp_path / "start"), *arguments, HOME=str(home), WANDB_BASE_URL="http://127.0.0.1:9").expect(1)
    told = [line for line in done.lines() if line.startswith("tracker=wandb cannot be started: ")]
    assert len(told) == 1
    assert status(done.run())["state"] == "failed"
    assert status(done.run())["reason"] == told[0]
    assert not rows(done.run() / "updates.jsonl")


@needs("tensorboard")
def test_every_row_is_read_back_from_the_event_file(tmp_path: Path) -> None:
    import numpy as np

    done = runner(shop(tmp_path / "start"), *late(), "accum=2", "tracker=tensorboard").expect(0)
    curves, texts = tensorboard_curves(done.run())
    for kind, counter in (("batch", "batch"), ("update", "update"), ("eval", "update")):
        wanted = expected(done.run(), kind)
        assert wanted, kind
        for name in wanted[0].keys() - {"batch", "update"}:
            points = [(r[counter], float(np.float32(r[name]))) for r in wanted if name in r]  # in single precision
            assert curves[f"{kind}/{name}"] == points, name
    over_updates = [(r["update"], float(np.float32(r["loss"]))) for r in expected(done.run(), "batch")]
    assert curves["batch_over_updates/loss"] == over_updates
    assert texts["status"] == "finished"
    config = json.loads(texts["config"].removeprefix("```json\n").removesuffix("\n```"))
    assert (config["seed"], config["world_size"]) == (42, 2)


@needs("mlflow")
def test_every_row_is_read_back_from_the_file_store(tmp_path: Path) -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    arguments = [*late(), "accum=2", "tracker=mlflow", "tracker.folder=store", "task.fall=true,false", "-m"]
    done = runner(shop(tmp_path / "start"), *arguments).expect(1)
    failed, finished = done.runs()
    client = MlflowClient(tracking_uri=(done.folder / "store").as_uri())
    experiment = client.get_experiment_by_name("samestep")
    found = {r.data.tags["folder"]: r for r in client.search_runs([experiment.experiment_id])}
    assert set(found) == {str(failed), str(finished)}
    assert [found[str(r)].info.status for r in (failed, finished)] == ["FAILED", "FINISHED"]
    for run in (failed, finished):
        one = found[str(run)]
        assert one.data.params["world_size"] == "2"
        assert one.data.tags["experiment"] == json.loads((run / "plan.json").read_text())["experiment"]
        for kind, counter in (("batch", "batch"), ("update", "update"), ("eval", "update")):
            for row_name in ("loss", "weight"):
                history = client.get_metric_history(one.info.run_id, f"{kind}/{row_name}")
                points = [(m.step, m.value) for m in history]
                wanted = [(r[counter], r[row_name]) for r in expected(run, kind)]
                assert points == wanted, (kind, row_name)
    assert len(client.get_metric_history(found[str(finished)].info.run_id, "batch/loss")) == 8 * 4
