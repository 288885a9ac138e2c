"""Stores, records and promotes a draft as a version. Called by the jobs `adapt` and `retrain`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from core.errors import Conflict, NotFound
from core.jobs import leases
from core.jobs.leases import JobLost
from core.tables.jobs import Job, JobState
from core.tables.models import Model
from core.tables.versions import Version
from core.versions import drafts, orphan_files
from core.versions.drafts import VersionDraft
from core.versions.erased_examples import open_parts, position_has_erased_examples
from worker.job_attempt import JobAttempt, Outdated
from worker.versions.self_check import check_stored
from worker.versions.snapshot import ModelSnapshot

Settle = Callable[[Session, Model, Version], str]
"""Makes a recorded version the tip and promotes it, where appropriate; returns the job's message."""


def record_version(attempt: JobAttempt, snapshot: ModelSnapshot, draft: VersionDraft, settle: Settle) -> None:
    """Store a draft's state; then record it, settle it and end the job, in one transaction under the job's lease.

    Raises Outdated, and deletes the file, if the draft must not be recorded, and Conflict if the file does not predict
    what the draft does.
    """
    with recorded(attempt, snapshot, draft) as (session, job, model, version):
        leases.end(job, JobState.SUCCEEDED, settle(session, model, version))


@contextmanager
def recorded(
    attempt: JobAttempt, snapshot: ModelSnapshot, draft: VersionDraft
) -> Iterator[tuple[Session, Job, Model, Version]]:
    """Store a draft's state and record it as a version; the transaction commits at the end of the block.

    Raises Outdated, and deletes the file, if the draft must not be recorded, and Conflict if the file does not predict
    what the draft does.
    """
    attempt.progress(0.95, "Storing the version")
    stored = attempt.store_state(draft.state)
    try:
        try:
            check_stored(snapshot, draft.state, stored)
        except NotFound as error:
            raise JobLost from error  # the lease had expired, and the file was deleted
        with attempt.write() as (session, job, model):
            require_current(session, model, draft)
            if not orphan_files.claim(session, stored.file, attempt.owner):
                raise JobLost  # the lease had expired, and the file was deleted
            version = drafts.record(session, model, draft, stored, job.id)
            job.version, job.from_position, job.to_position = version.number, draft.since, draft.position
            yield session, job, model, version
    except (Outdated, Conflict):
        attempt.drop(stored)
        raise


def require_current(session: Session, model: Model, draft: VersionDraft) -> None:
    """Raise Outdated if a draft knows a person who was erased meanwhile."""
    removals_position = max(draft.position, draft.removals_position)
    known = position_has_erased_examples(session, model.id, draft.position, removals_position)
    if known or removals_position > model.head:
        raise Outdated  # or the database lost its last, unacknowledged changes in a crash
    if not draft.erasing and open_parts(session, model.id):
        raise Outdated  # an erasure that was requested meanwhile needs a certified version
