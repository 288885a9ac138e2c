"""`python -m worker.scheduler`: looks every few seconds what is due and what was lost, and tells the workers.

It decides nothing itself: the database does, so any number of schedulers may run. It does its work here and not as a
task, because a tick must neither wait behind the jobs that it is there to order, nor need a broker to find them.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import FrameType

import structlog
from celery import Celery

from core import idempotency, logs
from core.database import Database, now
from core.erasure import schedule as erasure_schedule
from core.erasure.deleted_models import complete_erasures
from core.erasure.receipts import file_missing
from core.erasure.requests import restrict_held
from core.erasure.retention import expire_due
from core.erasure.states import warn_of_due
from core.erasure.vacuum import vacuum_if_due
from core.errors import AmendError
from core.jobs import messages, schedule, workers
from core.settings import Settings, from_environment
from core.tracking.queries import next_event
from core.versions import store_identity
from core.versions.orphans import sweep
from core.versions.store import Store
from core.webhooks import registry as webhooks
from migrations.runner import open_database
from worker.webhook_sender import WebhookSender

log = structlog.get_logger("scheduler")

STOP_TIMEOUT_SECONDS = 2.0
FORGET_AFTER = timedelta(days=1)
"""A worker without a heartbeat for this long is dropped from the list."""


def main() -> None:
    settings = from_environment()
    logs.configure(settings.log_level)
    database = open_database(settings)
    store_identity.begin(database, Store(settings.artifacts))
    celery = messages.sender(settings.broker)
    over = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    sender = WebhookSender(settings, database, over)
    sender.start()
    log.info("scheduler started", seconds=settings.tick_seconds)
    while not over.is_set():
        tick(settings, database, celery)
        over.wait(settings.tick_seconds)
    sender.join(STOP_TIMEOUT_SECONDS)  # what it is sending, another one sends again
    celery.close()
    database.close()


def tick(settings: Settings, database: Database, celery: Celery) -> None:
    """Everything that is to be done now; one part that fails does not keep the others from being done."""
    store = Store(settings.artifacts)

    def tell_mlflow() -> None:
        with database.read() as session:
            waiting = next_event(session) is not None
        if waiting and settings.mlflow_url:
            messages.send_track(celery)

    def tend_store() -> None:
        store_identity.mark(database, store)
        sweep(database, store)
        file_missing(database, store)

    def forget_workers() -> None:
        with database.write() as session:
            workers.delete_silent(session, now() - FORGET_AFTER)

    def forget_answers() -> None:
        with database.write() as session:
            idempotency.delete_old(session, timedelta(hours=settings.idempotency_hours))

    def forget_deliveries() -> None:
        with database.write() as session:
            webhooks.delete_old(session)

    parts: list[Callable[[], object]] = [
        lambda: restrict_held(database),
        lambda: expire_due(database),
        lambda: erasure_schedule.enqueue_due(database),
        lambda: schedule.enqueue_due(database),
        lambda: schedule.reconcile(database, partial(messages.send_job, celery), settings.resend_seconds),
        tend_store,
        lambda: complete_erasures(database, store, bool(settings.mlflow_url)),
        lambda: vacuum_if_due(database),
        tell_mlflow,
        forget_workers,
        forget_answers,
        lambda: warn_of_due(database),
        forget_deliveries,
        (settings.folder / "scheduler.alive").touch,
    ]
    for part in parts:
        try:
            part()
        except Exception as error:
            log.warning("a part of the tick failed; the next tick tries again", exc_info=error)


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
