"""Holding a model: nothing is adapted, retrained or promoted automatically until it is resumed.

Promoting an older version by hand holds the model, or else the next adaptation would undo the rollback. Changes that
arrive meanwhile are written to the ledger and wait; jobs that somebody requests make candidates; erasures are carried
out all the same. All functions expect the caller to have locked the model's row.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.database import now
from core.jobs import queue, schedule
from core.tables.jobs import JobKind
from core.tables.ledger import Change, ChangeKind, Removal
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import Version
from core.versions import history
from core.versions.queries import tip_of

NOT_PROMOTED = "not promoted: the model is held"


def hold(session: Session, model: Model, why: str, by: str) -> None:
    """Hold a model. One that is held already keeps its reason."""
    if model.held_at is None:
        model.held_at, model.held_why, model.held_by = now(), why, by
        enqueue_event(session, model, TrackingEventKind.ALIASES)


def promote_by_hand(session: Session, model: Model, version: Version, by: str) -> None:
    """Make a version the champion. If it is older than the champion, hold the model; no promotion ends a hold."""
    older = model.champion is not None and version.number < model.champion
    history.promote(session, model, version, by)
    if older:
        hold(session, model, f"version {version.number} was promoted by hand", by)


def note_erasure(model: Model, number: int) -> None:
    """Add to a held model's reason that an erasure promoted a version: those that knew the person are to be purged."""
    if model.held_why is not None:
        model.held_why = f"{model.held_why.partition(';')[0]}; version {number} was promoted by an erasure"


def resume(session: Session, model: Model, request_id: str | None) -> str | None:
    """End a hold, and enqueue what the policy asks for; returns the id of the first job, if there is one."""
    if model.held_at is None:
        return None
    model.held_at = model.held_why = model.held_by = None
    enqueue_event(session, model, TrackingEventKind.ALIASES)
    tip = tip_of(session, model)
    if tip is None or model.train_count == 0:
        return None
    due = dict(schedule.due_jobs(session, model, now()))
    if JobKind.ADAPT not in due and has_pending(session, model, tip):
        due = {JobKind.ADAPT: None, **due}
    jobs = [queue.enqueue(session, model, kind, request_id, due_at).id for kind, due_at in due.items()]
    if JobKind.ADAPT in due:  # removals that were requested during the hold have no job yet
        without_job = (Removal.model_id == model.id, Removal.job_id.is_(None), Removal.position > tip.position)
        session.execute(update(Removal).where(*without_job).values(job_id=jobs[0]))
    return jobs[0] if jobs else None


def has_pending(session: Session, model: Model, tip: Version) -> bool:
    """Whether something waits that is due whatever the policy: a removal, a change of the spec, a promotion."""
    if model.champion != tip.number and history.promotes(model):
        return True
    later = (Change.model_id == model.id, Change.kind != ChangeKind.ADDED, Change.last > tip.position)
    return session.scalar(select(Change.last).where(*later).limit(1)) is not None
