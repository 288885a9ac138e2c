"""Installs the simulated world under the product for the duration of a history."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import patch

import structlog
from sqlalchemy import select

import core.jobs.due_jobs
import core.promotion.gate_rule
import core.quality.drift_records
import core.register.log
import core.tracking.publisher
import core.tracking.purging
import core.versions.store
import core.webhooks.deliveries
import core.webhooks.http_post
import service.analyses.immediate
import service.labels
import worker.drift_after_job
import worker.job_heartbeat
import worker.jobs.adapt
import worker.jobs.analyse
import worker.jobs.erase
import worker.jobs.erasure_verification
import worker.jobs.nested_job
import worker.jobs.rebuild
import worker.jobs.retrain
import worker.scheduler
import worker.versions.recording
import worker.versions.snapshot
from core import clock
from core.erasure.evidence import Evidence
from core.errors import Unavailable
from core.tables.models import Model
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionState
from core.tracking.lineage import Lineage
from tests.simulation.baton import SimulatedClock, SimulatedThread
from tests.simulation.disk import DiskPath, DiskSystem
from tests.simulation.engine import StubEngine, StubState
from tests.simulation.world import World, namespace

GATE_ROWS = 2
"""Holdout rows that the gate needs: fewer than in the product, because histories are small."""
CHANGES_PER_DRIFT_REPORT = 10
NESTED_POLL_SECONDS = 2.0
"""Longer than in the product, because every poll takes several transactions."""


def run_of(version: Version) -> tuple[int, int, str]:
    """The run of a version: another one if the job made the version again after a restore, as `runs.MADE` has it."""
    return version.model_id, version.number, f"{version.job_id} {version.created_at.isoformat()}"


class EventHandler:
    """Publishes to the simulated MLflow in the order of `event_handlers`: note the folder, upload, register."""

    world: World

    def __init__(self, database: Any, store: Any, _url: str, hold: Callable[[], None]) -> None:
        self.database, self.store, self.hold = database, store, hold

    def request(self) -> None:
        self.hold()
        self.world.request("mlflow", "mlflow request")

    def handle(self, event: TrackingEvent) -> None:
        if event.kind is TrackingEventKind.DELETED:
            return
        if event.kind is TrackingEventKind.JOB:
            for version in self.versions(Version.model_id == event.model_id, Version.job_id == event.job_id):
                self.publish(version)
        with self.database.read() as session:
            champion = session.scalar(select(Model.champion).where(Model.id == event.model_id))
        self.request()
        self.world.mlflow.champions[event.model_id] = champion
        if event.kind is TrackingEventKind.PURGED:
            for version in self.versions(Version.model_id == event.model_id):
                if version.state is VersionState.PURGED:
                    self.request()
                    self.world.mlflow.weights.pop(run_of(version), None)
                    core.tracking.purging.forget_registration(self.database, version)

    def versions(self, *chosen: Any) -> Sequence[Version]:
        with self.database.read() as session:
            found: Sequence[Version] = session.scalars(select(Version).where(*chosen)).all()
            return found

    def publish(self, version: Version) -> None:
        if version.state is VersionState.PURGED or not self.store.exists(version.file):
            return
        data = self.store.get(version.file)
        self.request()
        self.update(version, mlflow_folder=f"models/{version.number}")
        self.request()
        self.world.mlflow.weights[run_of(version)] = data
        self.request()
        self.update(version, mlflow={"run_id": version.job_id, "version": str(version.number)})

    def update(self, version: Version, **values: Any) -> None:
        with self.database.write() as session:
            row = session.get(Version, (version.model_id, version.number))
            if row is not None:
                for name, value in values.items():
                    setattr(row, name, value)


class InlineExecutor:
    """Stands in for a pool of threads."""

    def __init__(self, _threads: int) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # a crash of the process is no Exception
            future.set_exception(error)
        return future

    def shutdown(self, **_options: bool) -> None: ...


async def run_at_once(_body: bytes, act: Callable[[], Any]) -> Any:
    """Stands in for `run_for_body`, which uses a thread."""
    return act()


@contextmanager
def installed(world: World, seed: int | str) -> Iterator[None]:
    """Run the product in a simulated world."""
    engine, ids = StubEngine(world), Random(f"ids {seed}")

    def require(_url: str) -> None:
        try:
            world.request("mlflow", "mlflow request")
        except ConnectionError as error:
            raise Unavailable("mlflow_unavailable", "MLflow does not respond.") from error

    def delete_weights(
        database: Any, url: str, hold: Callable[[], None], lineage: Lineage, versions: Any, lost: bool, gone: Any
    ) -> None:
        require(url)
        known = {run_of(version) for version in lineage.versions}
        numbers = {version.number for version in versions}
        hold()
        world.mlflow.champions[lineage.model.id] = lineage.model.champion
        for key in list(world.mlflow.weights):
            if key[0] == lineage.model.id and (key[1] in numbers or (lost and key not in known)):
                hold()
                require(url)
                world.mlflow.weights.pop(key, None)
                gone["files"] += 1
        for version in versions:
            core.tracking.purging.forget_registration(database, version)

    handlers, gateway = ModuleType("core.tracking.event_handlers"), ModuleType("core.tracking.gateway")
    handlers.EventHandler = type("Handler", (EventHandler,), {"world": world})
    gateway.is_unavailable = lambda error: isinstance(error, ConnectionError)
    gateway.describe_error = lambda error: "The connection to MLflow failed."
    thread = type("Thread", (SimulatedThread,), {"baton": world.baton})
    replacements = [
        (worker.job_heartbeat, "threading", namespace(Thread=thread, Event=threading.Event)),
        (worker.jobs.adapt, "next_version", engine.next_version),
        (worker.versions.recording, "check_stored", engine.check_stored),
        (worker.jobs.retrain, "train_draft", engine.train_draft),
        (worker.jobs.retrain, "compare_with", engine.compare_with),
        (worker.jobs.retrain, "find_units", lambda snapshot: None),
        (worker.jobs.rebuild, "train_draft", engine.train_draft),
        (worker.jobs.rebuild, "find_units", lambda snapshot: None),
        (worker.jobs.analyse, "compute", engine.analyse),
        (worker.jobs.erase, "State", StubState),
        (worker.jobs.nested_job, "POLL_SECONDS", NESTED_POLL_SECONDS),
        (worker.jobs.erasure_verification, "collect_evidence", lambda *arguments: Evidence()),
        (worker.versions.snapshot, "State", StubState),
        (worker.drift_after_job, "State", StubState),
        (worker.drift_after_job, "measure_drift", engine.measure_drift),
        (core.quality.drift_records, "NEW_CHANGES", CHANGES_PER_DRIFT_REPORT),
        (core.promotion.gate_rule, "MIN_ROWS", GATE_ROWS),
        (service.labels, "run_for_body", run_at_once),
        (service.analyses.immediate, "load_subject", engine.load_subject),
        (service.analyses.immediate, "report_labelling", engine.report_labelling),
        (worker.scheduler, "Store", lambda url: world.store),
        (core.register.log, "Store", lambda url: world.store),
        (core.versions.store, "Path", type("Path", (DiskPath,), {"files": world.files})),
        (core.versions.store, "os", DiskSystem(world.files)),
        (core.tracking.publisher, "require", require),
        (core.tracking.purging, "require", require),
        (core.tracking.purging, "delete_weights", delete_weights),
        (core.webhooks.http_post, "post", world.post),
        (core.webhooks.deliveries, "ThreadPoolExecutor", InlineExecutor),
        (core.jobs.due_jobs, "logged", {}),
        (uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
    ]
    with ExitStack() as stack:
        for module, name, value in replacements:
            stack.enter_context(patch.object(module, name, value))
        for imported in (handlers, gateway):
            stack.enter_context(replaced_module(imported))
        stack.enter_context(clock.use(SimulatedClock(world.baton)))
        stack.enter_context(silent_logs(world))
        state = random.getstate()
        random.seed(f"product {seed}")
        stack.callback(random.setstate, state)
        yield


@contextmanager
def replaced_module(module: ModuleType) -> Iterator[None]:
    """Have imports find another module.

    `patch.dict` would also forget the modules that the product imports meanwhile, and every history would load them.
    """
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


def describe_error(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f" {type(error).__name__}: {error} ({place.filename}:{place.lineno})"


@contextmanager
def silent_logs(world: World) -> Iterator[None]:
    """Write the product's log events to the trace instead of the output."""
    before = structlog.get_config()
    numbers = itertools.count()

    def record(_logger: Any, _method: str, event: dict[str, Any]) -> Any:
        next(numbers)
        error = event.get("exc_info")
        reason = describe_error(error) if isinstance(error, Exception) else ""
        shown = {name: event[name] for name in ("job", "kind", "reason", "attempt") if name in event}
        world.baton.note(f"log {event['event']} {shown}{reason}")
        raise structlog.DropEvent

    structlog.configure(processors=[record], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
