"""What tests of running parts share.

Tests of SQL run on SQLite and on PostgreSQL. Of the others that ask for `stack` or `deployment`, half run on the one
and half on the other, unless they say `both_databases`. Of large grids of cases every second or fourth one runs. With
AMEND_TEST_ALL set (`make test ALL=1`) all of them do.
"""

from __future__ import annotations

import gc
import os
import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests import servers
from tests.servers import PostgresServer, RedisServer

if TYPE_CHECKING:  # they load torch, which the process that hands out the tests does without
    from tests.stack import Stack
    from tests.worker.deployment import Deployment

gc.disable()  # looking for garbage while modules are loaded takes seconds

BACKENDS = ("sqlite", "postgresql")
LONG = ("endurance", "amend", "production", "worker", "service")
ORDER = ("tests/core/kprior", "deployment", "mlflow", "dashboard", *(f"tests/{name}" for name in LONG), "stack")
"""The mathematics first, which is soon done. Then what takes long, so that the last test is not a long one."""
EITHER = ("tests/service/", "tests/worker/", "tests/amend/", "tests/endurance/")
"""Whose tests are not about what the databases do differently."""
GRIDS = {"adaptation/test_exact": 4, "adaptation/test_chains": 2, "certificate/test_near_singular": 2}
"""Of how many cases one runs: there are hundreds of each, and any such share has every family, task and option."""
SHARED = {
    "tests/service/": "stack",
    "tests/amend/test_service": "stack",
    "tests/amend/test_wheel": "wheel",
    **{f"tests/endurance/test_{name}": "stack" for name in ("forks", "load", "outbox", "recording", "uploads")},
    "tests/worker/test_dashboard": "dashboard",
    "tests/worker/": "deployment",
    "tests/amend/operations/": "deployment",
    "tests/test_readme": "deployment",
    "tests/core/tracking/": "mlflow",
}
"""Where tests share something that takes long to start."""

# Property tests: the same examples on every run, and no deadline that a busy machine would miss. Failures are not
# shrunk: the problems are small and named by their parameters, and shrinking can take minutes.
settings.register_profile(
    "seeded",
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("seeded")


def group_of(nodeid: str) -> str:
    """The name of what a test shares with others; a file at least."""
    path, _, name = nodeid.partition("::")
    shared = next((what for where, what in SHARED.items() if path.startswith(where)), path)
    backend = next((backend for backend in BACKENDS if backend in name), "")
    return shared if shared in ("mlflow", "wheel") else f"{shared} {backend}" if backend else path


class Scheduling(LoadScopeScheduling):
    """Tests of a group go to the same test process, so that what they share is started once."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        return next((i for i, where in enumerate(ORDER) if group.startswith(where)), len(ORDER))

    items.sort(key=place)
    if not os.environ.get("AMEND_TEST_ALL"):
        chosen = {item.nodeid for item in items}
        spared = {item for item in items if is_spared(item, chosen)}
        config.hook.pytest_deselected(items=list(spared))
        items[:] = [item for item in items if item not in spared]


def is_spared(item: pytest.Item, chosen: set[str]) -> bool:
    """Whether a test runs on the other database instead, or others of its grid do: it depends on its name."""
    share = next((n for name, n in GRIDS.items() if item.nodeid.startswith(f"tests/core/kprior/{name}.py")), 1)
    if share > 1 and "[" in item.nodeid:
        return zlib.crc32(item.nodeid.encode()) % share != 0
    if not item.nodeid.startswith(EITHER) or item.get_closest_marker("both_databases"):
        return False
    backend = next((backend for backend in BACKENDS if backend in item.nodeid), None)
    if backend is None:
        return False
    other = BACKENDS[1 - BACKENDS.index(backend)]
    name = item.nodeid.replace(backend, "")
    return item.nodeid.replace(backend, other) in chosen and BACKENDS[zlib.crc32(name.encode()) % 2] != backend


@pytest.hookimpl(tryfirst=True)  # where there are several processes, no other is asked after that of pytest-xdist
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A test that could not be run here is nothing to be quiet about, nor one that passes at its second try."""
    for report in terminalreporter.stats.get("skipped", []):
        *_, reason = report.longrepr
        if "NOT RUN" in reason:
            terminalreporter.section("not everything was tested", sep="!", red=True, bold=True)
            terminalreporter.write_line(f"{report.nodeid}: {reason}", red=True, bold=True)
    flaky = terminalreporter.stats.get("passed", []) if terminalreporter.config.getoption("lf", False) else []
    if flaky:
        terminalreporter.section("flaky: failed at first, passed when run again", sep="!", yellow=True, bold=True)
        for report in flaky:
            terminalreporter.write_line(report.nodeid, yellow=True, bold=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session", params=BACKENDS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running service, shared by all tests of a backend."""
    from tests.stack import Stack

    url = ""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create_database(f"amend{uuid.uuid4().hex}")
    stack = Stack(tmp_path_factory.mktemp(request.param), url)
    try:
        yield stack.start()
    finally:
        stack.stop()


@pytest.fixture
def api(stack: Stack) -> Iterator[httpx.Client]:
    """A client with the admin's key."""
    with stack.client() as client:
        yield client


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with servers.redis() as server:
        yield server


@pytest.fixture(scope="session", params=BACKENDS)
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Service, broker, worker and scheduler, shared by all tests of a backend."""
    from tests.worker.deployment import Deployment

    folder = tmp_path_factory.mktemp(f"deployment-{request.param}")
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        broker: RedisServer = request.getfixturevalue("redis")
        deployment = Deployment(
            folder, postgres.create_database(f"deployment{uuid.uuid4().hex}"), AMEND_BROKER_URL=broker.url
        )
    else:
        deployment = Deployment(folder)
        deployment.add("worker.broker")
    try:
        deployment.start()
        deployment.add("worker")
        deployment.add("worker.scheduler")
        deployment.wait_until(deployment.ready)
        yield deployment
    finally:
        deployment.stop()
