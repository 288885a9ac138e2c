"""Running a job: take its lease, do its work, and record how it ended."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import structlog

from core.erasure.job_end import follow_up
from core.errors import AmendError, Conflict, Unavailable
from core.jobs import leases, outbox
from core.jobs.leases import JobCancelled, JobLost
from core.kprior import SolverError
from core.logs import current_request
from core.tables.figures import JobError
from core.tables.jobs import JobKind, JobState
from core.versions import store_identity
from worker.attempt import JobAttempt
from worker.context import Context
from worker.heartbeat import HandedBack, Heartbeat
from worker.jobs import adapt, erase, retrain
from worker.versions.builder import NUMERICAL_ERRORS

log = structlog.get_logger("worker")

TRANSIENT = (
    "database_unavailable",
    "database_busy",
    "store_unavailable",
    store_identity.FOREIGN,
    "mlflow_unavailable",
    "mlflow_busy",
    "receipts_behind",
    "not_gone_yet",
)
"""Codes of errors that go away by themselves: they do not count as attempts."""
HANDLERS: dict[JobKind, Callable[[JobAttempt], None]] = {
    JobKind.ADAPT: adapt.adapt,
    JobKind.RETRAIN: retrain.retrain,
    JobKind.ERASE: erase.erase,
}


def run(context: Context, job_id: str) -> None:
    """Run a job, unless it has ended or another worker runs it. Errors of the job are recorded, and not raised."""
    owner = f"{context.name}:{uuid.uuid4().hex[:8]}"
    settings = context.settings
    with context.database.write() as session:
        attempt = None
        if found := leases.take(session, job_id, owner, settings.lease_seconds, settings.max_attempts):
            follow_up(session, *found)
            if found[0].state is JobState.RUNNING:
                attempt = JobAttempt.of(context, *found, owner, run)
    if attempt is not None:
        token = current_request.set(attempt.request_id)
        log.info("job started", job=job_id, kind=attempt.kind, model=attempt.model, attempt=attempt.number)
        try:
            run_attempt(context, attempt)
        finally:
            current_request.reset(token)
    try:
        outbox.flush(context.database, context.send)
    except Exception as error:  # what is not sent stays in the outbox
        log.warning("messages could not be sent yet", exc_info=error)


def run_attempt(context: Context, attempt: JobAttempt) -> None:
    """Do the work of a job whose lease we have. Success is recorded by the work itself, all other ends here."""
    try:
        extend = partial(leases.extend, context.database, attempt.job_id, attempt.owner, context.settings.lease_seconds)
        with Heartbeat(context, attempt.job_id, extend) as heartbeat:
            attempt.progress = heartbeat
            store_identity.check(context.store, context.store_id)
            HANDLERS[attempt.kind](attempt)
        log.info("job succeeded", job=attempt.job_id, model=attempt.model)
    except JobLost:
        log.warning("job lost to another worker, or its model was deleted", job=attempt.job_id, model=attempt.model)
    except JobCancelled:
        log.info("job cancelled", job=attempt.job_id, model=attempt.model)
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                leases.end(found[0], JobState.CANCELLED, "cancelled")
                follow_up(session, *found)
    except (HandedBack, SystemExit) as stop:  # SystemExit: a signal to all processes of the worker, children included
        log.info("job handed back", job=attempt.job_id, model=attempt.model)
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                found[0].attempts -= 1  # stopping the worker is no failure of the job
                leases.release(session, found[0], "handed back by a worker that was told to stop")
        if isinstance(stop, SystemExit):
            raise
    except Exception as error:
        log.error("job failed", job=attempt.job_id, model=attempt.model, exc_info=error)
        max_attempts, pause = context.settings.max_attempts, context.settings.retry_seconds
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                if isinstance(error, Unavailable) and error.code in TRANSIENT:
                    found[0].attempts -= 1  # nor is an outage
                elif isinstance(error, Conflict):
                    max_attempts = 1  # another attempt would fail in the same way
                leases.fail_attempt(session, found[0], explain(error), max_attempts, pause)
                follow_up(session, *found)


def explain(error: Exception) -> JobError:
    """The code and message of a failure, for people. Messages of other libraries may quote data, and are left out."""
    if isinstance(error, AmendError):
        return {"code": error.code, "detail": error.detail}
    if isinstance(error, SolverError):
        return {"code": "solver_failed", "detail": str(error)}
    if isinstance(error, NUMERICAL_ERRORS):
        detail = "No model could be computed: check the examples for extreme values, or use a larger delta."
        return {"code": "solver_failed", "detail": detail}
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return {"code": "out_of_memory", "detail": "The worker has too little memory for this model and its examples."}
    if isinstance(error, ValueError) and is_from_engine(error):
        return {"code": "work_refused", "detail": str(error)}
    return {"code": "internal_error", "detail": f"An unexpected {type(error).__name__}; the worker's log says where."}


def is_from_engine(error: Exception) -> bool:
    """Whether the engine raised the error: its messages contain no data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("core.kprior")
