"""Holding a model: nothing is adapted, retrained or promoted automatically until it is resumed.

Changes that arrive meanwhile are written to the ledger; jobs that somebody requests create candidates; erasures are
carried out all the same. The caller holds the lock on the model's row. `core.jobs.resumption` ends a hold.
"""

from sqlalchemy.orm import Session

from core.clock import now
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event


def hold(session: Session, model: Model, reason: str, by: str) -> None:
    """Hold a model. A model that is held already keeps its reason."""
    if model.held_at is None:
        model.held_at, model.held_reason, model.held_by = now(), reason, by
        enqueue_event(session, model, TrackingEventKind.ALIASES)


def note_erasure(model: Model, number: int) -> None:
    """Add to a held model's reason that an erasure promoted a version."""
    if model.held_reason is not None:
        model.held_reason = f"{model.held_reason.partition(';')[0]}; version {number} was promoted by an erasure"
