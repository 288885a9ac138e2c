"""Telling MLflow what happened, in order, each thing once. Called by the worker, now and then.

Everything told is looked for first, so whoever is killed on the way can be followed by another who tells it again.
MLflow's own code takes seconds to import: only `publish` does, and only when there is something to tell.
"""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import structlog
from sqlalchemy import delete, update

from core import mutex
from core.database import Database, now
from core.errors import Unavailable
from core.tables.tracking import TrackingEvent
from core.tracking.queries import next_event
from core.versions.store import Store

if TYPE_CHECKING:
    from core.tracking.handlers import EventHandler

USER = "amend"
"""Our name at an MLflow that `amend up` or docker-compose.yml starts."""
MUTEX = "tracking"
MUTEX_SECONDS = 60.0
MAX_ATTEMPTS = 15
FIRST_RETRY_SECONDS = 5.0
"""Before a refused event is tried again; doubled each time, so that the last attempt is a day later."""
MAX_ERROR_LENGTH = 200
"""Characters of an event's error; the rest is cut off."""

ENVIRONMENT = {
    # a repeated request could create something twice: we repeat events instead, and look first
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "40",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""What MLflow's client reads. No request may outlast the lease."""

log = structlog.get_logger(__name__)


class MutexLost(Exception):
    """Another process has the mutex of publishers now."""


class MutexKeeper:
    """Extends the mutex of publishers: called before each request to MLflow. Raises MutexLost if another has it."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database, self.owner = database, owner
        self.extended = -MUTEX_SECONDS

    def __call__(self, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self.extended + MUTEX_SECONDS / 4:
            return
        if not mutex.acquire(self.database, MUTEX, self.owner, MUTEX_SECONDS):
            raise MutexLost
        self.extended = time.monotonic()


def publish(
    database: Database, store: Store, url: str, owner: str, seconds: float = math.inf, model: str | None = None
) -> int:
    """Tell MLflow all events, in order, or as many as it can in some seconds; how many. None while another does.

    With the name of a model its own alone, for whoever cannot wait until all that is told of others: models have
    nothing to do with each other, unless one took the name of another, whose events come first.
    Unavailable if MLflow does not answer: what is not told yet stays.
    """
    if event_after(database, 0, model) is None:
        return 0
    hold, published, last = MutexKeeper(database, owner), 0, 0
    try:
        hold()
        require(url)
        os.environ.update(ENVIRONMENT)
        from core.tracking.handlers import EventHandler

        handler, end = EventHandler(database, store, url, hold), time.monotonic() + seconds
        while time.monotonic() < end and (event := event_after(database, last, model)) is not None:
            last = event.id
            if now() >= event.tried_at + timedelta(
                seconds=FIRST_RETRY_SECONDS * 2**event.attempts if event.attempts else 0
            ):
                hold(at_once=True)
                published += publish_event(database, handler, event, url)
    except MutexLost:
        return published
    finally:
        mutex.release(database, MUTEX, owner)
    return published


def event_after(database: Database, last: int, model: str | None) -> TrackingEvent | None:
    """The event after another."""
    with database.read() as session:
        return next_event(session, last, model)


def require(url: str) -> None:
    """Unavailable, if MLflow does not answer."""
    try:
        ask(url, 2.0)
    except httpx.HTTPError as error:
        raise Unavailable("mlflow_unavailable", "MLflow does not answer; what it missed is told later.") from error


def ask(url: str, seconds: float, password: str = "") -> None:
    """HTTPError, if MLflow does not answer; with a password, also if it does not answer to that."""
    # where there is no TLS, preparing for it would take longer than the call
    verify = httpx.URL(url).scheme != "http"
    path, auth = ("version", (USER, password)) if password else ("health", None)
    httpx.get(f"{url.rstrip('/')}/{path}", auth=auth, timeout=seconds, verify=verify).raise_for_status()


def sign_in(password: str) -> None:
    """Have MLflow's client, in this process, send a password with all that it asks."""
    if password:
        os.environ.update(MLFLOW_TRACKING_USERNAME=USER, MLFLOW_TRACKING_PASSWORD=password)


def publish_event(database: Database, handler: EventHandler, event: TrackingEvent, url: str) -> bool:
    """Tell one event and delete it; False if MLflow refused it."""
    from core.tracking.mlflow_client import describe_error, is_unanswered

    try:
        handler.handle(event)
    except (MutexLost, Unavailable):
        raise
    except Exception as error:
        if is_unanswered(error):
            raise Unavailable("mlflow_unavailable", f"{describe_error(error)} What it missed is told later.") from error
        require(url)
        note_refusal(database, event, error)
        return False
    with database.write() as session:
        session.execute(delete(TrackingEvent).where(TrackingEvent.id == event.id))
    return True


def note_refusal(database: Database, event: TrackingEvent, error: Exception) -> None:
    """Note that an event was not taken; give up after some attempts, so that others are not kept waiting."""
    from mlflow.exceptions import MlflowException

    # of other exceptions the text may hold anything
    text = str(error).splitlines()[0] if isinstance(error, MlflowException) and str(error) else ""
    described = f"{type(error).__name__}: {text}".removesuffix(": ")[:MAX_ERROR_LENGTH]
    about = {"entry": event.id, "kind": event.kind.value, "model": event.model, "job": event.job_id}
    with database.write() as session:
        if event.attempts + 1 >= MAX_ATTEMPTS:
            session.execute(delete(TrackingEvent).where(TrackingEvent.id == event.id))
            log.warning("mlflow_entry_given_up", **about, error=described, exc_info=error)
            return
        row = update(TrackingEvent).where(TrackingEvent.id == event.id)
        session.execute(row.values(attempts=TrackingEvent.attempts + 1, error=described, tried_at=now()))
    log.info("mlflow_entry_refused", **about, error=described)
