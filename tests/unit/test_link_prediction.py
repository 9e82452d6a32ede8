"""Seconds on paper: the model's arithmetic against cases that can be reckoned by hand, and what the command says."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest

from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.compose.links import overrides_of, read_link
from runner.errors import ConfigError
from runner.launch.hardware import check_hardware
from runner.plan import Plan, Sizes, make_plan
from runner.plan_command import run as plan_command
from runner.predict import allreduce
from runner.predict.allreduce import Path as Way
from runner.predict.allreduce import Shape, path_of
from runner.predict.link import gradient_bytes, predict
from runner.predict.overlap import after_backward, buckets_of
from runner.predict.pace import Pace, pace_of
from runner.predict.scale import COUNTS, scale
from runner.rundir import RunFolder
from runner.surroundings import Link

WAY = Way(1e-3, 1e6)  # a millisecond a message, a megabyte a second
MB = 10**6
PACE = Pace(micro=0.3, tail=0.05, per_device=16, source="a run")
BUSY = ["task=reviews", "schedule=constant", "batch=per_device", "batch.size=16", "accum=4", "hardware=2node"]


def planned(*settings: str) -> tuple[Plan, Sizes]:
    plan = compose_one(parse([*BUSY, *settings]))
    sizes = Sizes(items=1056, parameters=2_500_000 - 2)  # 10 MB with the loss total and weight
    return plan.with_sizes(sizes), sizes


def test_two_processes_exchange_everything_whatever_the_algorithm() -> None:
    assert allreduce.ring(2, WAY, MB) == pytest.approx(2e-3 + 1.0)
    assert allreduce.halving(2, WAY, MB) == pytest.approx(2e-3 + 1.0)
    assert allreduce.doubling(2, WAY, MB) == pytest.approx(1e-3 + 1.0)


def test_algorithms_of_eight() -> None:
    assert allreduce.ring(8, WAY, MB) == pytest.approx(14e-3 + 1.75)
    assert allreduce.halving(8, WAY, MB) == pytest.approx(6e-3 + 1.75)
    assert allreduce.doubling(8, WAY, MB) == pytest.approx(3 * (1e-3 + 1.0))
    assert allreduce.halving(9, WAY, MB) == pytest.approx(6e-3 + 1.75 + 2 * (1e-3 + 1.0)), "the ninth has a partner"
    depth = 3
    best = min((4 * depth + 2 * k) * (1e-3 + 1 / k) for k in range(1, 500))
    assert allreduce.double_tree(8, WAY, MB) == pytest.approx(best, rel=1e-3), "the chunks are the best ones"
    assert allreduce.ring(1, WAY, MB) == allreduce.halving(1, WAY, MB) == allreduce.double_tree(1, WAY, MB) == 0


def test_a_ring_over_nodes_goes_at_the_pace_of_its_slowest_way() -> None:
    near, far = Way(1e-5, 1e9), Way(1e-3, 1e6)
    own = allreduce.HOP
    ring = allreduce.flat_ring(Shape(8, 2, near, far), MB)
    assert ring == pytest.approx(14 * own + 1.75), "half of a part hides a message's wait"
    ring = allreduce.flat_ring(Shape(8, 2, near, far), 8000)
    assert ring == pytest.approx(14 * (1e-3 + 0.5e-3)), "and of a small one it does not"
    assert allreduce.flat_ring(Shape(8, 1, near, far), MB) == pytest.approx(14e-5 + 1.75e-3)
    aware = allreduce.ALGORITHMS["rings inside and between nodes"](Shape(8, 2, near, far), MB)
    assert aware == pytest.approx(allreduce.ring(4, near, MB) + allreduce.ring(2, far, MB)), (
        "the way out carries it once"
    )


def test_more_nodes_turn_from_rings_to_trees() -> None:
    near, far = Way(1e-5, 1e11), Way(1e-4, 1e9)
    names = [allreduce.best(Shape(8 * nodes, nodes, near, far), MB) for nodes in (2, 512)]
    assert "ring" in names[0] and "ring" not in names[1]


def test_loss_and_delay_of_a_link() -> None:
    plain = path_of(Link(name="x", rate=350.0))
    assert plain.rate == pytest.approx(350e6 / 8 * 0.956)
    assert path_of(Link(name="x", rate=350.0, delay=5.0)).alpha == pytest.approx(plain.alpha + 10e-3)
    lossy = path_of(Link(name="x", rate=1000.0, delay=20.0, loss=1.0))
    assert lossy.rate == pytest.approx(1448 / 0.04 * 1.22 / 0.1)


def test_buckets_fill_at_an_even_pace_and_the_last_parameter_comes_at_the_end() -> None:
    assert list(buckets_of(10, 4, 0)) == [(0.4, 4), (0.8, 4), (1.0, 2)]
    assert list(buckets_of(10, 4, 2)) == [(0.5, 4), (1.0, 4), (1.0, 2)]
    assert list(buckets_of(10, 4, 3)) == [(pytest.approx(4 / 7), 4), (1.0, 6)], "what is left joins the last parameter"
    assert list(buckets_of(10, inf, 3)) == [(1.0, 10)]


def test_what_the_backward_does_not_hide() -> None:
    buckets = [(0.5, 1.0), (1.0, 1.0)]
    assert after_backward(10.0, iter(buckets), lambda size: size) == pytest.approx(1.0), "a fast link: its last bucket"
    assert after_backward(1.0, iter(buckets), lambda size: size) == pytest.approx(1.5), (
        "a slow one: all but half a backward"
    )
    assert after_backward(0.0, iter(buckets), lambda size: size) == pytest.approx(2.0)


@pytest.mark.parametrize(("policy", "reductions"), [("accumulate", 1), ("every_batch", 4), ("backward_only", 4)])
def test_an_update_over_a_link(policy: str, reductions: int) -> None:
    plan, sizes = planned("link=350mbit", f"sync={policy}", "sync.bucket_mb=25")
    assert gradient_bytes(plan, sizes) == 10 * MB
    seconds = predict(plan, sizes, PACE)
    assert seconds is not None and seconds.update is not None and seconds.batch is not None
    once = 2 * allreduce.HOP + 10 * MB / (350e6 / 8 * 0.956)
    assert seconds.reduction == pytest.approx(once)
    assert seconds.waiting == pytest.approx(reductions * once), "a single bucket leaves when the backward is over"
    assert seconds.update == pytest.approx(4 * 0.3 + 0.05 + reductions * once)
    assert seconds.batch == pytest.approx(0.3 + reductions * once / 4)
    assert seconds.bound == "compute"
    assert seconds.wire_bytes == reductions * 10 * MB


def test_a_slow_link_bounds_and_small_buckets_overlap() -> None:
    plan, sizes = planned("link=20mbit", "sync=every_batch")
    slow = predict(plan, sizes, PACE)
    assert slow is not None and slow.bound == "link"
    plan, sizes = planned("link=1gbit", "seeding=bitwise")  # buckets of a mebibyte
    early = predict(plan, sizes, PACE)
    assert early is not None and early.waiting is not None
    assert early.algorithm == "recursive doubling"
    assert 0 < early.waiting < early.reduction / 4, "most of it is sent during the backward"


def test_policies_that_change_the_mathematics() -> None:
    plan, sizes = planned("link=350mbit", "sync.bucket_mb=25")
    exact = predict(plan, sizes, PACE)
    plan, sizes = planned("link=350mbit", "sync.bucket_mb=25", "compress=bf16")
    half = predict(plan, sizes, PACE)
    plan, sizes = planned("link=350mbit", "sync=local_sgd", "sync.every=5", "sync.bucket_mb=25")
    seldom = predict(plan, sizes, PACE)
    assert exact and half and seldom and exact.waiting and half.waiting and seldom.waiting
    assert half.wire_bytes == 5 * MB + 4 and seldom.wire_bytes == 2 * MB
    assert half.waiting == pytest.approx(exact.waiting / 2, rel=0.01)
    assert seldom.waiting == pytest.approx(exact.waiting / 5), "an average every five updates, which no backward hides"
    plan, sizes = planned("link=350mbit", "compress=powersgd")
    assert predict(plan, sizes, PACE) is None, "the shapes of the parameters decide"


def test_the_bucket_chosen_for_the_link_hides_the_most() -> None:
    waits = []
    for size in ("0.0625", "null", "25"):
        plan, sizes = planned("link=350mbit", f"sync.bucket_mb={size}")
        seconds = predict(plan, sizes, PACE)
        assert seconds and seconds.waiting
        waits.append(seconds.waiting)
    assert waits[1] < min(waits[0], waits[2])


def test_what_is_not_predicted() -> None:
    plan, sizes = planned()
    assert predict(plan, sizes, PACE) is None, "nothing is known of what joins the nodes"
    plan, sizes = planned("link=1gbit", "hardware.parallel=fsdp")
    assert predict(plan, sizes, PACE) is None
    plan, sizes = planned("link=1gbit")
    alone = predict(plan, sizes, None)
    assert alone is not None and alone.update is None and alone.reduction > 0
    with pytest.raises(ConfigError, match="more than the number of parameters"):
        plan_command([*BUSY, "link=1gbit", "compress=powersgd", "--scale"])


def test_other_micro_batches_are_scaled_and_it_says_so() -> None:
    plan, sizes = planned("link=1gbit", "batch.size=32")
    seconds = predict(plan, sizes, PACE)
    assert seconds is not None and seconds.compute == pytest.approx(0.6)
    assert any("there it had 16 items, here it has 32" in line for line in seconds.assumptions)


def test_scale_on_paper() -> None:
    plan, sizes = planned("link=10gbit", "hardware.processes=4096", "hardware.nodes=512")
    shape = Shape(4096, 512, Way(1e-5, 1e11), path_of(plan.config.link))
    rows = list(scale(plan, sizes, shape, PACE))
    assert [row.devices for row in rows] == list(COUNTS) and rows[-1].nodes == 512
    efficiencies = [row.efficiency or 0.0 for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True) and 0 < efficiencies[-1] < efficiencies[0] <= 1
    for row in rows:
        here = Shape(row.devices, row.nodes, shape.inside, shape.between)
        assert row.seconds == {name: time(here, 10 * MB) for name, time in allreduce.ALGORITHMS.items()}
        assert row.algorithm == "ring", "gloo's, whatever would be faster"
    plan, sizes = planned("link=10gbit", "hardware=4096gpu", "hardware.nodes=512")
    quick = list(scale(plan, sizes, shape, PACE))
    assert all(row.algorithm == row.fastest for row in quick)
    assert quick[-1].fastest != "ring" and (quick[-1].update or 0) < (rows[-1].update or 0)
    flat, aware = (rows[-1].seconds[n] for n in ("ring", "rings inside and between nodes"))
    assert flat > 5 * aware, "a flat ring pays the network's latency at every device, one between nodes at every node"


def made(folder: Path, batches: list[dict[str, object]], updates: list[dict[str, object]]) -> Path:
    run = RunFolder(folder)
    folder.mkdir()
    run.plan.write_text(planned()[0].to_json())
    run.batches.write_text("".join(json.dumps(r) + "\n" for r in batches))
    run.updates.write_text("".join(json.dumps(r) + "\n" for r in updates))
    return folder


def batch(update: int, rank: int, seconds: float, synced: bool) -> dict[str, object]:
    facts = {"micro": 0, "epoch": 0, "loss": 1.0, "weight": 16.0}
    return facts | {"update": update, "rank": rank, "seconds": seconds, "synced": synced}


def test_the_pace_is_that_of_micro_batches_that_sent_nothing(tmp_path: Path) -> None:
    rows = [batch(u, r, 9.0 if u == 1 else 0.2, False) for u in (1, 2, 3) for r in (0, 1)]
    rows += [batch(u, r, 0.7 + r / 10, True) for u in (1, 2, 3) for r in (0, 1)]
    pace = pace_of(made(tmp_path / "run", rows, [{"update": u, "seconds": 1.1} for u in (1, 2, 3)]))
    assert pace.micro == pytest.approx(0.2), "the first update warms up, a synced micro-batch waits"
    assert pace.tail == pytest.approx(1.1 - 1.0), "beside the slowest rank's micro-batches"
    assert pace.per_device == 16


def test_a_window_waits_for_its_slowest_process(tmp_path: Path) -> None:
    """Now one process is slow and now another: half of the micro-batches are fast, and no window is."""
    rows = [batch(u, r, 0.4 if u % 2 == r else 0.2, False) for u in range(1, 8) for r in (0, 1) for _ in range(3)]
    pace = pace_of(made(tmp_path / "run", rows, [{"update": u, "seconds": 1.3} for u in range(1, 8)]))
    assert pace.micro == pytest.approx(0.4) and pace.tail == pytest.approx(0.1)


def test_a_run_that_shows_no_pace(tmp_path: Path) -> None:
    only_synced = made(
        tmp_path / "a", [batch(u, 0, 0.2, True) for u in (1, 2)], [{"update": u, "seconds": 1} for u in (1, 2)]
    )
    with pytest.raises(ConfigError, match="none shows computing alone"):
        pace_of(only_synced)
    with pytest.raises(ConfigError, match="no updates after its first"):
        pace_of(made(tmp_path / "b", [batch(1, 0, 0.2, False)], [{"update": 1, "seconds": 1}]))
    with pytest.raises(ConfigError, match="is no run that can be read"):
        pace_of(tmp_path)


def test_links_by_file_and_by_rate(tmp_path: Path) -> None:
    file = tmp_path / "link.yaml"
    file.write_text("# ours\nname: measured\nrate: 350\ndelay: 5\n")
    link = read_link("--link", str(file))
    assert (link.name, link.rate, link.delay) == ("measured", 350, 5)
    assert make_plan(compose_one(parse([*BUSY, *overrides_of(link)])).config).config.link == link
    assert read_link("--inside", "100gbit").rate == 100_000
    for text, said in (
        ("name: x\n", "it has no rate"),
        ("name: x\nrate: 1\nspeed: 2\n", "speed"),
        ("- 1\n", "link.yaml"),
        ("{", "no link"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_link("--link", str(file))
    with pytest.raises(ConfigError, match="100 gbit"):
        read_link("--inside", "100 gbit")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "link.yaml"
    file.write_text("name: measured\nrate: 350\n")
    assert plan_command([*BUSY, "--link", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["link"]["name"] == "measured" and told["seconds"]["algorithm"] == "ring"
    assert plan_command([*BUSY, f"--link={file}"]) == 0
    assert "ring:" in capsys.readouterr().out
    assert plan_command([*BUSY, "link=10gbit", "--scale", "--json"]) == 0
    assert [row["devices"] for row in json.loads(capsys.readouterr().out)] == list(COUNTS)
    for wrong, said in (
        (["--scale"], "what joins the nodes is not known"),
        (["link=1gbit", "--link", str(file)], "given twice"),
        (["--from"], "needs a value"),
        (["--frm=x"], "--json, --load, --memory, --scale, --from, --link, --inside"),
    ):
        with pytest.raises(ConfigError, match=said):
            plan_command([*BUSY, *wrong])


def test_a_link_between_gpus_can_be_planned_but_not_run() -> None:
    plan = compose_one(parse(["link=10gbit", "hardware=8gpu"]))
    assert plan.config.link.rate == 10_000
    with pytest.raises(ConfigError, match="It can be planned"):
        check_hardware(plan)
