"""What all tests share: one warm fork server, and a bench to run experiments on."""

from __future__ import annotations

import signal

import pytest

from runner.launch.warm import warm_up
from tests.running import Bench, spread_over_two_nodes


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "give the processes of every run to two nodes, in network namespaces: the same cases must hold"
    parser.addoption("--two-nodes", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in a shell's background job: tests send Ctrl-C to what they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--two-nodes"):
        spread_over_two_nodes()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load torch in the fork server while the first tests run, if any test will need it."""
    if any(item.get_closest_marker("ranks") for item in session.items):
        warm_up()


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("runs"))
