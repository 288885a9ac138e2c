"""The Celery application of the workers, and its two tasks: run a job, publish to MLflow."""

import logging
import os
from functools import lru_cache
from multiprocessing.sharedctypes import RawValue
from typing import Any

import structlog
import torch
from billiard.util import get_logger as get_pool_logger
from celery import Celery, signals

from core import logs, tracing
from core.errors import Unavailable
from core.jobs.messages import RUN_TASK, TRACK_TASK, send_track
from core.settings import Settings, from_environment
from worker import kombu_internals
from worker.context import Context
from worker.job_runner import run as run_job

log = structlog.get_logger("worker")

PUBLISH_SECONDS = 10.0
"""How long one task may publish to MLflow before it yields the process to other tasks."""
BROKER_TIMEOUT_SECONDS = 5.0

stopping = RawValue("b", 0)
"""1 once the worker is shutting down; set in its main process and read in its children. Not an Event: a process that is
killed while it holds the Event's lock would block all others."""


kombu_internals.install()


def make(settings: Settings) -> Celery:
    """A Celery application that loses no messages and does not prefetch messages that an idle worker could take."""
    app = Celery("amend", broker=settings.broker)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        # A message that is redelivered while its job runs finds the lease taken and is dropped; the reconciler resends
        # lost messages.
        broker_transport_options={
            "visibility_timeout": 3600,
            "socket_connect_timeout": BROKER_TIMEOUT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        enable_utc=True,
        timezone="UTC",
    )
    return app


app = make(from_environment())


@lru_cache(maxsize=1)
def context() -> Context:
    """The context of this process: created on first use, in a child after the fork."""
    return Context(from_environment(), app, lambda: bool(stopping.value))


@app.task(name=RUN_TASK)
def run(job_id: str) -> None:
    """Run a job."""
    try:
        run_job(context(), job_id)
    finally:
        context().end_job()
    if context().settings.mlflow_url:
        send_track(app)


@app.task(name=TRACK_TASK)
def track() -> None:
    """Publish pending events to MLflow."""
    from core.tracking.publisher import publish  # takes seconds to import; most processes never need it

    process = context()
    try:
        published = publish(process.database, process.store, process.settings.mlflow_url, process.name, PUBLISH_SECONDS)
        if published:
            send_track(app)  # there may be more events; tasks that are waiting for this process come first
    except Unavailable:
        log.info("mlflow_unavailable")


@signals.setup_logging.connect
def set_up_logging(**_: Any) -> None:
    logs.configure(from_environment().log_level)
    get_pool_logger().propagate = True  # otherwise it prints the loss of a child process to stderr, not as JSON
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)  # our own log reports the start and end of jobs


@signals.worker_process_init.connect
def prepare_child(**_: Any) -> None:
    settings = from_environment()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.worker_processes))


@signals.worker_process_shutdown.connect
def end_child(**_: Any) -> None:
    tracing.flush()


@signals.worker_shutting_down.connect
def stop_children(**_: Any) -> None:
    stopping.value = 1
