"""What a task of Slurm's finds out by itself: which node it is, and where all of them meet. No Slurm is asked."""

from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.launch.slurm import PORTS, arguments_of, first_of, rendezvous

STEP = {
    "SLURM_JOB_ID": "71002",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[017-018]",
    "SLURM_JOB_NODELIST": "gpu[003,017-018]",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
}


def ask(environment: dict[str, str], *typed: str) -> list[str]:
    return arguments_of(environment, typed, str.upper)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-2]", "n1"),
        ("gpu[003-007,9],login2", "gpu003"),
        ("gpu[12,3],x", "gpu12"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]-node", "rack1-node"),
        ("cn-01.site.org,cn-02.site.org", "cn-01.site.org"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_of(nodes) == first


def test_a_step_on_two_nodes_says_rank_and_rendezvous() -> None:
    rank, where = ask(STEP, "hardware=2node")
    assert rank == "node.rank=1"
    host, _, port = where.removeprefix("rendezvous=").partition(":")
    assert host == "GPU017", "the first node of the step, not of the job, by its address"
    assert int(port) in PORTS
    assert ask({**STEP, "SLURM_NODEID": "0"}) == ["node.rank=0", where], "all nodes meet at the same place"


def test_other_jobs_and_other_steps_meet_elsewhere() -> None:
    places = {
        rendezvous({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": step}, str)
        for job in (71002, 71003)
        for step in ("0", "1")
    }
    assert len(places) == 4


@pytest.mark.parametrize(
    ("environment", "typed"),
    [
        ({}, ()),
        ({**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, ()),
        ({k: v for k, v in STEP.items() if "STEP" not in k}, ()),  # the batch script itself, before srun
        (STEP, ("node.rank=1", "rendezvous=a:1")),
        (STEP, ("+rendezvous=a:1",)),
        (STEP, ("launch=slurm",)),
    ],
)
def test_nothing_is_added_where_nothing_is_asked(environment: dict[str, str], typed: tuple[str, ...]) -> None:
    assert ask(environment, *typed) == []


def test_several_tasks_on_a_node_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        ask({**STEP, "SLURM_STEP_NUM_TASKS": "8"})
    assert "8 tasks on 2 nodes" in str(refused.value)
    assert "--ntasks-per-node=1" in str(refused.value)
