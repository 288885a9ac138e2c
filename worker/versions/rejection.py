"""Versions that fail the promotion gate: recorded, not promoted, and their new examples put into quarantine."""

from __future__ import annotations

from sqlalchemy.orm import Session

from core.jobs import leases
from core.ledger.quarantine import quarantine
from core.quality.queries import has_other_changes
from core.tables.jobs import JobState
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.drafts import VersionDraft
from core.webhooks.events import emit
from worker.job_attempt import JobAttempt, Outdated
from worker.versions.recording import recorded
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import NewExamplesScored


def record_rejection(
    attempt: JobAttempt, snapshot: ModelSnapshot, draft: VersionDraft, scored: NewExamplesScored
) -> bool:
    """Record a rejected draft and put the examples that it learnt into quarantine, in one transaction.

    Returns whether the job has ended. It goes on if the ledger holds other changes, because a bad batch must not delay
    a removal or a correction.
    """
    tip = snapshot.tip
    if tip is None:
        raise Outdated  # the version that it was compared with was promoted after the snapshot
    with recorded(attempt, snapshot, draft) as (session, job, model, version):
        if model.tip != tip.number:
            raise Outdated
        version.state = VersionState.REJECTED
        scored.record(session, model, job.id)
        count = quarantine(session, model, tip.position, draft.position, version.number)
        report_failure(session, model, version, count)
        if has_other_changes(session, model, tip.position):
            return False
        model.covered_position = model.head
        leases.end(job, JobState.SUCCEEDED, describe_rejection(version, count))
    return True


def warn_about(session: Session, model: Model, version: Version) -> None:
    """Report a version that failed the gate, but was not rejected."""
    if version.gate is not None and version.gate["passed"] is False:
        report_failure(session, model, version, 0)


def report_failure(session: Session, model: Model, version: Version, quarantined: int) -> None:
    """Send the event `version.rejected`. It contains no metrics: they are deleted if a person is erased."""
    rejected = version.state is VersionState.REJECTED
    event = WebhookEvent.VERSION_REJECTED
    emit(session, event, model=model.name, version=version.number, rejected=rejected, quarantined=quarantined)


def describe_rejection(version: Version, count: int) -> str:
    """The message of a job whose version was rejected; without metrics, for the same reason."""
    examples = f"{count} new example{'s are' if count != 1 else ' is'}"
    return f"Version {version.number} was rejected by the promotion gate; {examples} in quarantine."
