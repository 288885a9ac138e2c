"""Marks, fixtures and hypothesis profiles that all tests share; CONTRIBUTING.md describes them under "Tests"."""

from __future__ import annotations

import gc
import os
import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings

from tests import servers
from tests.servers import PostgresServer, RedisServer

if TYPE_CHECKING:  # the last two import torch, which the process that distributes the tests does not need
    from xdist.workermanage import WorkerController

    from tests.stack import Stack
    from tests.worker.deployment import Deployment

gc.disable()  # collecting garbage while modules are imported takes seconds

BACKENDS = ("sqlite", "postgresql")
EITHER_BACKEND = (
    *("tests/service/", "tests/worker/", "tests/amend/", "tests/endurance/"),
    *("tests/core/erasure/", "tests/core/register/", "tests/core/webhooks/"),
)
"""Folders whose tests run on one of the two databases: they do not test what the databases do differently."""
LONG = (
    *("tests/endurance/", "tests/worker/", "tests/amend/", "tests/production/", "tests/service/"),
    *("tests/core/tracking/", "tests/simulation/"),
)
"""Folders that are started first, so that no long test is the last one to finish."""
SHARED = ("wheel", "installed", "mlflow", "deployment", "stack", "small")
"""Session fixtures that take seconds to set up."""
TIMING_ATTEMPTS = 3

# Property tests use the same examples on every run, and have no deadline that a busy machine would miss. Failures are
# not shrunk: the problems are small and named by their parameters, and shrinking can take minutes.
COMMON = {
    "deadline": None,
    "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": [HealthCheck.too_slow],
    "print_blob": True,
}
settings.register_profile("seeded", derandomize=True, **COMMON)
settings.register_profile("fuzz", derandomize=False, database=None, **COMMON)
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if not os.environ.get("AMEND_TEST_ALL"):
        names = {item.nodeid for item in items}
        omitted = {item for item in items if is_omitted(item, names)}
        config.hook.pytest_deselected(items=list(omitted))
        items[:] = [item for item in items if item not in omitted]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """Fail if pytest-xdist does not group the tests: each process would start all servers."""
    if node.config.getoption("dist") == "loadgroup" and not all("@" in name for name in ids):
        pytest.exit("pytest-xdist ignores the mark `xdist_group` with this version of pytest.", returncode=3)


def group_of(item: pytest.Item) -> str:
    """Name of the group that runs in one process: the tests of a shared fixture on one database, else of a file."""
    fixtures = getattr(item, "fixturenames", ())
    shared = next((name for name in SHARED if name in fixtures), None)
    return f"{shared} {backend_of(item) or ''}".rstrip() if shared else item.nodeid.partition("::")[0]


def backend_of(item: pytest.Item) -> str | None:
    return next((backend for backend in BACKENDS if backend in item.name), None)


def is_omitted(item: pytest.Item, names: set[str]) -> bool:
    """Whether a hash of its name excludes the test: it runs on the other database, or other cases of its grid run."""
    grid = item.get_closest_marker("grid") if hasattr(item, "callspec") else None
    if grid is not None and zlib.crc32(item.name.encode()) % grid.args[0]:
        return True
    backend = backend_of(item)
    if backend is None or not item.nodeid.startswith(EITHER_BACKEND) or item.get_closest_marker("both_databases"):
        return False
    other = BACKENDS[1 - BACKENDS.index(backend)]
    chosen = BACKENDS[zlib.crc32(item.nodeid.replace(backend, "").encode()) % 2]
    return chosen == other and item.nodeid.replace(backend, other) in names


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's hook ends the call of the others in the process that distributes tests
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked as timing-dependent again if it fails, and report its last attempt only."""
    if item.get_closest_marker("timing") is None:
        return None
    failures: list[str] = []
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(TIMING_ATTEMPTS):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report.longreprtext for report in reports if report.failed]
        if not failed:
            break
        failures += failed
    for report in reports:
        if report.when == "call" and report.passed:
            report.failures = failures
        if report.failed and len(failures) > 1:
            report.sections.append(("Failure of the first attempt", failures[0]))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Drop the group that pytest-xdist appends to the id: `pytest --last-failed` would not find the test by it."""
    name, at, group = report.nodeid.rpartition("@")
    if at and "]" not in group and hasattr(report, "node"):  # not in a worker process, which still needs the id
        report.nodeid = name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that could not run here, and those that passed only when they were run again."""
    for report in terminalreporter.stats.get("skipped", []):
        *_, reason = report.longrepr
        if "NOT RUN" in reason:
            terminalreporter.section("not everything was tested", sep="!", red=True, bold=True)
            terminalreporter.write_line(f"{report.nodeid}: {reason}", red=True, bold=True)
    flaky = [report for report in terminalreporter.stats.get("passed", []) if getattr(report, "failures", None)]
    if flaky:
        terminalreporter.section("flaky: failed at first, passed when run again", sep="!", yellow=True, bold=True)
    for report in flaky:
        terminalreporter.write_line(report.nodeid, yellow=True, bold=True)
        terminalreporter.write_line(report.failures[0])


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
    """A service with its broker, worker and scheduler, shared by all tests of a backend."""
    from tests.worker.deployment import running_deployment

    folder = tmp_path_factory.mktemp(f"deployment-{request.param}")
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        broker: RedisServer = request.getfixturevalue("redis")
        url, environment = postgres.create_database(f"deployment{uuid.uuid4().hex}"), {"AMEND_BROKER_URL": broker.url}
    else:
        url, environment = "", {}
    with running_deployment(folder, url, **environment) as running:
        yield running
