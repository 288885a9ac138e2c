"""From a draft to a version: stored, recorded, promoted. Called by the jobs `adapt` and `retrain` when one is made."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from core.erasure.requests import open_parts
from core.jobs import leases
from core.jobs.leases import Lost
from core.tables.jobs import JobState
from core.tables.models import Model
from core.tables.versions import Version
from core.versions import history, orphans
from core.versions.history import VersionDraft
from worker.attempt import JobAttempt
from worker.outdated import Outdated, knows_erased

Settle = Callable[[Session, Model, Version], str]
"""Says what becomes of a recorded version, and does it: whether it is the new tip, whether it is promoted. Its words
end the job's message."""


def record_version(attempt: JobAttempt, draft: VersionDraft, settle: Settle) -> None:
    """Store a draft, record it, have it settled, and end the job, in one transaction under the job's lease.

    Outdated if the draft must not be recorded; then its file is deleted.
    """
    attempt.progress(0.95, "storing")
    stored = attempt.store_state(draft.state)
    try:
        with attempt.write() as (session, job, model):
            require_current(session, model, draft)
            if not orphans.claim(session, stored.file, attempt.owner):
                raise Lost  # the lease had ended, and the file is gone
            version = history.record(session, model, draft, stored, job.id)
            job.version, job.from_position, job.to_position = version.number, draft.since, draft.position
            leases.end(job, JobState.SUCCEEDED, settle(session, model, version))
    except Outdated:
        attempt.drop(stored)
        raise


def require_current(session: Session, model: Model, draft: VersionDraft) -> None:
    """Outdated if a draft knows a person who was erased meanwhile."""
    if knows_erased(session, model.id, draft.position) or draft.position > model.head:
        raise Outdated  # or a crash of the database took the last changes back, which nobody had been told of
    if not draft.erasing and open_parts(session, model.id):
        raise Outdated  # whoever asked meanwhile needs a version with a certificate
