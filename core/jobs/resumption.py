"""Resuming a held model (`core.models.holds`). The caller holds the lock on the model's row."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.jobs import due_jobs, queue
from core.promotion.decision import Requester, decide_promotion
from core.tables.jobs import JobKind
from core.tables.ledger import Change, ChangeKind, Removal
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import Version
from core.versions.queries import tip_of


def resume(session: Session, model: Model, request_id: str | None) -> str | None:
    """End a hold and enqueue the jobs that are due; returns the id of the first one, if any."""
    if model.held_at is None:
        return None
    model.held_at = model.held_reason = model.held_by = None
    enqueue_event(session, model, TrackingEventKind.ALIASES)
    tip = tip_of(session, model)
    if tip is None or model.train_count == 0:
        return None
    due = dict(due_jobs.due_jobs(session, model, now()))
    if JobKind.ADAPT not in due and has_pending(session, model, tip):
        due = {JobKind.ADAPT: None, **due}
    jobs = [queue.enqueue(session, model, kind, request_id, due_at).id for kind, due_at in due.items()]
    if JobKind.ADAPT in due:  # removals that were requested during the hold have no job yet
        without_job = (Removal.model_id == model.id, Removal.job_id.is_(None), Removal.position > tip.position)
        session.execute(update(Removal).where(*without_job).values(job_id=jobs[0]))
    return jobs[0] if jobs else None


def has_pending(session: Session, model: Model, tip: Version) -> bool:
    """Whether a removal, a change of the spec or a promotion is pending: they are due whatever the policy says."""
    if decide_promotion(session, model, tip, Requester.POLICY).promoted:
        return True
    since = max(tip.position, model.covered_position)
    automatic = (ChangeKind.ADDED, ChangeKind.LABELLED, ChangeKind.QUARANTINED)
    later = (Change.model_id == model.id, Change.kind.not_in(automatic), Change.last > since)
    return session.scalar(select(Change.last).where(*later).limit(1)) is not None
