"""From a draft to a version: stored, recorded, promoted. Called by the jobs `adapt` and `retrain` when one is made."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from core.erasure.queries import open_parts
from core.jobs import leases
from core.jobs.leases import JobLost
from core.tables.jobs import JobState
from core.tables.models import Model
from core.tables.versions import Version
from core.versions import history, orphans
from core.versions.history import VersionDraft
from core.versions.knowledge import position_knows_erased
from worker.attempt import JobAttempt, Outdated

Settle = Callable[[Session, Model, Version], str]
"""Decides whether a recorded version becomes the tip and is promoted; returns the job's message."""


def record_version(attempt: JobAttempt, draft: VersionDraft, settle: Settle) -> None:
    """Store a draft's state; then record it, settle it and end the job, in one transaction under the job's lease.

    Raises Outdated, and deletes the file, if the draft must not be recorded.
    """
    attempt.progress(0.95, "storing")
    stored = attempt.store_state(draft.state)
    try:
        with attempt.write() as (session, job, model):
            require_current(session, model, draft)
            if not orphans.claim(session, stored.file, attempt.owner):
                raise JobLost  # the lease had ended, and the file is gone
            version = history.record(session, model, draft, stored, job.id)
            job.version, job.from_position, job.to_position = version.number, draft.since, draft.position
            leases.end(job, JobState.SUCCEEDED, settle(session, model, version))
    except Outdated:
        attempt.drop(stored)
        raise


def require_current(session: Session, model: Model, draft: VersionDraft) -> None:
    """Raise Outdated if a draft knows a person who was erased meanwhile."""
    if position_knows_erased(session, model.id, draft.position) or draft.position > model.head:
        raise Outdated  # or a crash of the database undid the last changes, which were not acknowledged yet
    if not draft.erasing and open_parts(session, model.id):
        raise Outdated  # an erasure that was requested meanwhile needs a version with a certificate
