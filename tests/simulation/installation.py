"""Installs the simulated world under the product for the duration of a history."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import patch

import structlog

import core.jobs.schedule
import core.tracking.publisher
import core.tracking.purging
import core.versions.store
import core.webhooks.deliveries
import core.webhooks.network
import worker.heartbeat
import worker.jobs.adapt
import worker.jobs.erase
import worker.jobs.retrain
import worker.runner
import worker.scheduler
import worker.versions.recording
import worker.versions.snapshot
from core import clock
from core.errors import Unavailable
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionState
from core.tracking.lineage import Lineage
from tests.simulation.baton import SimulatedClock, SimulatedThread
from tests.simulation.engine import StubEngine, StubState
from tests.simulation.world import World, namespace


class EventHandler:
    """Publishes to the simulated MLflow in the order of `core.tracking.handlers`: note the folder, upload, register."""

    world: World

    def __init__(self, database: Any, store: Any, _url: str, hold: Callable[[], None]) -> None:
        self.database, self.store, self.hold = database, store, hold

    def request(self) -> None:
        self.hold()
        self.world.request("mlflow", "mlflow request")

    def handle(self, event: TrackingEvent) -> None:
        lineage = Lineage.of(self.database, event.model_id)
        if event.kind is TrackingEventKind.DELETED or lineage is None:
            return
        if event.kind is TrackingEventKind.JOB:
            for version in lineage.versions:
                if version.job_id == event.job_id:
                    self.publish(version)
            lineage = Lineage.of(self.database, event.model_id) or lineage
        self.request()
        self.world.mlflow.champions[event.model_id] = lineage.model.champion

    def publish(self, version: Version) -> None:
        if version.state is VersionState.PURGED or not self.store.exists(version.file):
            return
        data = self.store.get(version.file)
        self.request()
        self.update(version, mlflow_folder=f"models/{version.number}")
        self.request()
        self.world.mlflow.weights[version.model_id, version.number, version.job_id] = data
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

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def map(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return map(function, *arguments)


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
        known = {version.job_id for version in lineage.versions}
        numbers = {version.number for version in versions}
        hold()
        world.mlflow.champions[lineage.model.id] = lineage.model.champion
        for key in list(world.mlflow.weights):
            if key[0] == lineage.model.id and (key[1] in numbers or (lost and key[2] not in known)):
                hold()
                require(url)
                world.mlflow.weights.pop(key, None)
                gone["files"] += 1
        for version in versions:
            core.tracking.purging.forget_registration(database, version)

    handlers, gateway = ModuleType("core.tracking.handlers"), ModuleType("core.tracking.gateway")
    handlers.EventHandler = type("Handler", (EventHandler,), {"world": world})
    gateway.is_unavailable = lambda error: isinstance(error, ConnectionError)
    gateway.describe_error = lambda error: "The connection to MLflow failed."
    thread = type("Thread", (SimulatedThread,), {"baton": world.baton})
    replacements = [
        (worker.heartbeat, "threading", namespace(Thread=thread, Event=threading.Event)),
        (worker.jobs.adapt, "next_version", engine.next_version),
        (worker.jobs.adapt, "judge_draft", engine.judge_draft),
        (worker.jobs.adapt, "score_new_examples", engine.score_new_examples),
        (worker.versions.recording, "check_stored", engine.check_stored),
        (worker.runner, "update_drift", lambda context, model_id: None),
        (worker.jobs.retrain, "train_draft", engine.train_draft),
        (worker.jobs.retrain, "score_new_examples", engine.score_new_examples),
        (worker.jobs.retrain, "judge_draft", engine.judge_draft),
        (worker.jobs.retrain, "compare_with", engine.compare_with),
        (worker.jobs.retrain, "find_units", lambda snapshot: None),
        (worker.jobs.erase, "State", StubState),
        (worker.versions.snapshot, "State", StubState),
        (worker.scheduler, "Store", lambda url: world.store),
        (core.versions.store, "write_whole", world.files.write_whole),
        (core.versions.store, "sync_folder", world.files.sync),
        (core.tracking.publisher, "require", require),
        (core.tracking.purging, "require", require),
        (core.tracking.purging, "delete_weights", delete_weights),
        (core.webhooks.network, "post", world.post),
        (core.webhooks.deliveries, "ThreadPoolExecutor", InlineExecutor),
        (core.jobs.schedule, "logged", {}),
        (uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
    ]
    with ExitStack() as stack:
        for module, name, value in replacements:
            stack.enter_context(patch.object(module, name, value))
        modules = {"core.tracking.handlers": handlers, "core.tracking.gateway": gateway}
        stack.enter_context(patch.dict(sys.modules, modules))
        stack.enter_context(clock.use(SimulatedClock(world.baton)))
        stack.enter_context(silent_logs(world))
        state = random.getstate()
        random.seed(f"product {seed}")
        stack.callback(random.setstate, state)
        yield


@contextmanager
def silent_logs(world: World) -> Iterator[None]:
    """Write the product's log events to the trace instead of the output."""
    before = structlog.get_config()
    numbers = itertools.count()

    def record(_logger: Any, _method: str, event: dict[str, Any]) -> Any:
        next(numbers)
        error = event.get("exc_info")
        reason = f" {type(error).__name__}: {error}" if isinstance(error, Exception) else ""
        shown = {name: event[name] for name in ("job", "kind", "reason", "attempt") if name in event}
        world.baton.note(f"log {event['event']} {shown}{reason}")
        raise structlog.DropEvent

    structlog.configure(processors=[record], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
