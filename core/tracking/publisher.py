"""Publishes events to MLflow, in order and each once. Called by the worker from time to time.

Every object is looked up before it is created, so if a publisher is killed, another can repeat its event. MLflow takes
seconds to import, so only `publish` imports it, and only if there is an event.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import structlog
from sqlalchemy import delete, update

from core import mutex, tracing
from core.clock import monotonic, now
from core.database import Database
from core.errors import Unavailable
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tracking.queries import find_traceparent, next_event
from core.versions.store import Store

if TYPE_CHECKING:
    from core.tracking.event_handlers import EventHandler

USER = "amend"
"""Our user name at an MLflow that `amend up` or docker-compose.yml starts."""
MUTEX = "tracking"
MUTEX_SECONDS = 60.0
PURGE_MUTEX = "tracking_purge"
"""Held by a purge that waits or works. Publishers let it go first: a receipt must not wait for their backlog."""
MAX_ATTEMPTS = 15
FIRST_RETRY_SECONDS = 5.0
"""Delay before a rejected event is retried; doubled each time, so that the last attempt is a day later."""
MAX_ERROR_LENGTH = 200
"""Maximum length of an event's error in characters; longer errors are truncated."""

ENVIRONMENT = {
    # a repeated request could create an object twice; we repeat whole events instead
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "40",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of MLflow's client. No request may take longer than the mutex lasts."""

log = structlog.get_logger(__name__)


class MutexLost(Exception):
    """Another process has taken the mutex of publishers."""


class MutexKeeper:
    """Extends the mutex of publishers before each request to MLflow. Raises MutexLost if another process has it."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database, self.owner = database, owner
        self.extended = -MUTEX_SECONDS

    def __call__(self, at_once: bool = False) -> None:
        if not at_once and monotonic() < self.extended + MUTEX_SECONDS / 4:
            return
        if not mutex.acquire(self.database, MUTEX, self.owner, MUTEX_SECONDS):
            raise MutexLost
        self.extended = monotonic()


def publish(
    database: Database,
    store: Store,
    url: str,
    owner: str,
    seconds: float = math.inf,
    model: str | None = None,
    job: str | None = None,
) -> int:
    """Publish all events, deletions of models first, or as many as possible in some seconds; returns how many.

    Does nothing while another process publishes, and stops when a purge waits. With the name of a model, only its
    events are published, and with the id of a job only that job's, for callers that cannot wait for the others.
    Raises Unavailable if MLflow does not respond; unpublished events are kept.
    """
    with database.read() as session:
        if next_event(session, 0, model, job) is None:
            return 0
    hold, published = MutexKeeper(database, owner), 0
    try:
        hold()
        require(url)
        os.environ.update(ENVIRONMENT)
        from core.tracking.event_handlers import EventHandler

        handler, end = EventHandler(database, store, url, hold), monotonic() + seconds
        for deletions in (True, False):  # an erasure may wait for the deletion of a model
            last = 0
            while monotonic() < end:
                with database.read() as session:
                    event = next_event(session, last, model, job, deletions)
                    waits = job is None and event is not None and mutex.is_taken(session, PURGE_MUTEX)
                if event is None:
                    break
                if waits:
                    return published
                last = event.id
                if is_due(event):
                    hold(at_once=True)
                    parent = find_traceparent(database, event.job_id) if tracing.enabled() else None
                    with tracing.span("publish to MLflow", parent, model=event.model, kind=event.kind.value):
                        published += publish_event(database, handler, event, url)
    except MutexLost:
        return published
    finally:
        mutex.release(database, MUTEX, owner)
    return published


def is_due(event: TrackingEvent) -> bool:
    """Whether an event is to be published now: at once, or some time after MLflow rejected it."""
    doublings = min(event.attempts, MAX_ATTEMPTS - 1)
    return not event.attempts or now() >= event.attempted_at + timedelta(seconds=FIRST_RETRY_SECONDS * 2**doublings)


def require(url: str) -> None:
    """Raise Unavailable if MLflow does not respond."""
    try:
        ask(url, 2.0)
    except httpx.HTTPError as error:
        raise Unavailable("mlflow_unavailable", "MLflow does not respond. Events will be published later.") from error


def ask(url: str, seconds: float, password: str = "") -> None:
    """Raise HTTPError if MLflow does not respond, or rejects the password if one is given."""
    # without TLS, preparing for it would take longer than the call
    verify = httpx.URL(url).scheme != "http"
    path, auth = ("version", (USER, password)) if password else ("health", None)
    httpx.get(f"{url.rstrip('/')}/{path}", auth=auth, timeout=seconds, verify=verify).raise_for_status()


def sign_in(password: str) -> None:
    """Have MLflow's client in this process send a password with every request."""
    if password:
        os.environ.update(MLFLOW_TRACKING_USERNAME=USER, MLFLOW_TRACKING_PASSWORD=password)


def publish_event(database: Database, handler: EventHandler, event: TrackingEvent, url: str) -> bool:
    """Publish one event and delete it; returns False if MLflow rejected it."""
    from core.tracking.gateway import describe_error, is_unavailable

    try:
        handler.handle(event)
    except (MutexLost, Unavailable):
        raise
    except Exception as error:
        if is_unavailable(error):
            raise Unavailable(
                "mlflow_unavailable", f"{describe_error(error)} Events will be published later."
            ) from error
        require(url)
        record_rejection(database, event, error)
        return False
    with database.write() as session:
        session.execute(delete(TrackingEvent).where(TrackingEvent.id == event.id))
    return True


def record_rejection(database: Database, event: TrackingEvent, error: Exception) -> None:
    """Record that MLflow rejected an event; drop it after the last attempt.

    A deletion is never dropped: receipts of erasures say that nothing of the model is left in MLflow.
    """
    from mlflow.exceptions import MlflowException

    # texts of other exceptions may contain data
    text = str(error).splitlines()[0] if isinstance(error, MlflowException) and str(error) else ""
    described = f"{type(error).__name__}: {text}".removesuffix(": ")[:MAX_ERROR_LENGTH]
    about = {"event_id": event.id, "kind": event.kind.value, "model": event.model, "job": event.job_id}
    with database.write() as session:
        if event.attempts + 1 >= MAX_ATTEMPTS and event.kind is not TrackingEventKind.DELETED:
            session.execute(delete(TrackingEvent).where(TrackingEvent.id == event.id))
            log.warning("tracking_event_dropped", **about, error=described, exc_info=error)
            return
        row = update(TrackingEvent).where(TrackingEvent.id == event.id)
        session.execute(row.values(attempts=TrackingEvent.attempts + 1, error=described, attempted_at=now()))
    log.info("tracking_event_rejected", **about, error=described)
