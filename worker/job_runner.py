"""Running a job: takes its lease, does the work, and records how it ended."""

import uuid
from functools import partial
from typing import Any

import structlog

from core import tracing
from core.errors import AmendError, Conflict, Unavailable
from core.jobs import leases, outbox, retries
from core.jobs.leases import JobCancelled, JobLost
from core.kprior import SolverError
from core.lifecycle.job_completion import follow_up
from core.logs import current_request
from core.register.lag import require_current
from core.tables.documents import JobError
from core.tables.jobs import JobState
from core.versions import store_identity
from worker.context import Context
from worker.drift_after_job import update_drift
from worker.job_attempt import JobAttempt
from worker.job_heartbeat import HandedBack, Heartbeat
from worker.jobs import HANDLERS
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
    "erasure_in_progress",
    "not_gone_yet",
)
"""Codes of transient errors, which do not count as attempts."""


def run(context: Context, job_id: str) -> None:
    """Run a job, unless it has ended or another worker runs it. Errors of the job are recorded, not raised."""
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
        log.info("job_started", job=job_id, kind=attempt.kind, model=attempt.model, attempt=attempt.number)
        try:
            about: dict[str, Any] = {
                "model": attempt.model,
                "job_id": job_id,
                "attempt": attempt.number,
                "request_id": attempt.request_id,
            }
            with tracing.span(f"job {attempt.kind}", attempt.traceparent, **about):
                run_attempt(context, attempt)
        finally:
            current_request.reset(token)
    try:
        outbox.flush(context.database, context.send)
    except Exception as error:  # unsent messages stay in the outbox
        log.warning("outbox_delivery_failed", exc_info=error)
    if attempt is not None:
        update_drift(context, attempt.model_id)


def run_attempt(context: Context, attempt: JobAttempt) -> None:
    """Do the work of a leased job. The work itself records success; all other endings are recorded here."""
    try:
        extend = partial(leases.extend, context.database, attempt.job_id, attempt.owner, context.settings.lease_seconds)
        with Heartbeat(context, attempt.job_id, extend) as heartbeat:
            attempt.progress = heartbeat
            store_identity.check(context.store, context.store_id)
            with context.database.read() as session:
                require_current(session, context.store)
            HANDLERS[attempt.kind](attempt)
        log.info("job_succeeded", job=attempt.job_id, model=attempt.model)
    except JobLost:
        log.warning("job_lost", job=attempt.job_id, model=attempt.model)
    except JobCancelled:
        log.info("job_cancelled", job=attempt.job_id, model=attempt.model)
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                leases.end(found[0], JobState.CANCELLED, "Cancelled.")
                follow_up(session, *found)
    except (HandedBack, SystemExit) as stop:  # SystemExit: the signal went to all processes of the worker
        log.info("job_handed_back", job=attempt.job_id, model=attempt.model)
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                found[0].attempts -= 1  # a shutdown of the worker does not count as an attempt
                retries.release(session, found[0], "Handed back by a worker that was shutting down.")
        if isinstance(stop, SystemExit):
            raise
    except Exception as error:
        log.error("job_failed", job=attempt.job_id, model=attempt.model, exc_info=error)
        tracing.mark_failed(explain(error)["code"])
        max_attempts, pause = context.settings.max_attempts, context.settings.retry_seconds
        with context.database.write() as session:
            if found := leases.find_owned(session, attempt.job_id, attempt.owner):
                if isinstance(error, Unavailable) and error.code in TRANSIENT:
                    found[0].attempts -= 1  # nor does an outage
                elif isinstance(error, Conflict):
                    max_attempts = 1  # another attempt would fail the same way
                retries.fail_attempt(session, found[0], explain(error), max_attempts, pause)
                follow_up(session, *found)


def explain(error: Exception) -> JobError:
    """The code and message of a failure. Messages of other libraries are left out because they may contain data."""
    if isinstance(error, AmendError):
        return {"code": error.code, "detail": error.detail}
    if isinstance(error, SolverError):
        return {"code": "solver_failed", "detail": str(error)}
    if isinstance(error, NUMERICAL_ERRORS):
        detail = "No model could be computed. Check the examples for extreme values, or use a larger delta."
        return {"code": "solver_failed", "detail": detail}
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return {"code": "out_of_memory", "detail": "The worker has too little memory for this model and its examples."}
    if isinstance(error, ValueError) and is_from_engine(error):
        return {"code": "work_refused", "detail": str(error)}
    return {"code": "internal_error", "detail": f"Unexpected {type(error).__name__}. See the worker's log."}


def is_from_engine(error: Exception) -> bool:
    """Whether the engine raised the error; its messages contain no data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("core.kprior")
