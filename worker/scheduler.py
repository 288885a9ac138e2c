"""`python -m worker.scheduler`: enqueues due jobs and resends lost messages, every few seconds.

All state is in the database, so any number of schedulers may run. It is a process and not a Celery task because a tick
must not wait behind the jobs that it enqueues, nor need a broker to find them.
"""

import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import FrameType

import structlog
from celery import Celery

from core import clock, idempotency, logs, metadata, suppressions
from core.audit import entries
from core.database import Database
from core.erasure.deleted_models import complete_erasures
from core.erasure.receipts import write_files
from core.erasure.requests import restrict_waiting
from core.erasure.state_changes import warn_of_due
from core.errors import AmendError
from core.jobs import due_jobs, messages, tuning_schedule, worker_heartbeats
from core.lifecycle import erase_schedule
from core.lifecycle.example_retention import expire_due
from core.lifecycle.version_retention import prune_due
from core.register import journal_files
from core.register.record_retention import expire_records
from core.settings import Settings, from_environment, parse_days
from core.tracking.queries import next_event
from core.vacuum import vacuum_if_due
from core.versions import store_identity
from core.versions.orphan_files import sweep
from core.versions.store import Store
from core.webhooks import registrations as webhooks
from migrations.runner import open_database
from worker.timestamp_thread import TimestampRequester
from worker.webhook_thread import WebhookSender

log = structlog.get_logger("scheduler")

STOP_TIMEOUT_SECONDS = 2.0
FORGET_AFTER = timedelta(days=1)
"""A worker without a heartbeat for this long is deleted from the list."""


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
    if settings.tsa_url:
        TimestampRequester(settings, database, over).start()
    log.info("scheduler_started", seconds=settings.tick_seconds)
    while not over.is_set():
        tick(settings, database, celery)
        clock.wait(over, settings.tick_seconds)
    sender.join(STOP_TIMEOUT_SECONDS)  # another scheduler repeats an interrupted delivery
    celery.close()
    database.close()


def tick(settings: Settings, database: Database, celery: Celery) -> None:
    """Do everything that is due now; a failed step does not prevent the others."""
    store = Store(settings.artifacts)

    def publish_to_mlflow() -> None:
        with database.read() as session:
            waiting = next_event(session) is not None
        if waiting and settings.mlflow_url:
            messages.send_track(celery)

    def sweep_store() -> None:
        store_identity.identify(database, store)
        sweep(database, store)
        journal_files.delete_expired(database, settings)
        journal_files.merge_small(database)
        write_files(database, store)

    def record_heartbeat() -> None:
        with database.write() as session:
            metadata.record_tick(session)
            worker_heartbeats.delete_silent(session, clock.now() - FORGET_AFTER)

    def delete_old_records() -> None:
        with database.write() as session:
            idempotency.delete_old(session, timedelta(hours=settings.idempotency_hours))
            suppressions.delete_expired(session)
            webhooks.delete_old(session)

    steps: list[Callable[[], object]] = [
        lambda: restrict_waiting(database),
        lambda: expire_due(database),
        lambda: prune_due(database),
        lambda: erase_schedule.enqueue_due(database),
        lambda: due_jobs.enqueue_due(database),
        lambda: tuning_schedule.enqueue_due(database),
        lambda: due_jobs.reconcile(database, partial(messages.send_job, celery), settings.resend_seconds),
        sweep_store,
        lambda: complete_erasures(database, store, bool(settings.mlflow_url)),
        lambda: vacuum_if_due(database),
        publish_to_mlflow,
        record_heartbeat,
        delete_old_records,
        lambda: warn_of_due(database),
        lambda: expire_records(database, settings),
        lambda: entries.delete_expired(database, parse_days(settings.audit_retention)),
        (settings.folder / "scheduler.alive").touch,
    ]
    for step in steps:
        try:
            step()
        except Exception as error:
            log.warning("tick_step_failed", exc_info=error)


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
