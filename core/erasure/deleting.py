"""Erasures in models that were deleted meanwhile: they end when nothing of the model is left. Called by the tick."""

from __future__ import annotations

from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import purging, receipts, requests
from core.tables.erasures import OPEN, Erasure, ErasureState, Part
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.versions.history import folder_of
from core.versions.store import Store


def complete(database: Database, store: Store, mlflow: bool) -> None:
    """Look for what is left of deleted models, and end the erasures of which nothing is."""
    ids = orphans()
    with database.read() as session:
        if session.scalar(ids.limit(1)) is None:
            return
    tidied = purging.tidying(database, purging.tidy(database))
    with database.write() as session:
        receipts.require_all(session, store)
        for part, erasure in session.execute(ids).all():
            found = looked(session, store, part, mlflow)
            if any(found.values()):
                continue  # the next tick looks again
            figures = {name: value for name, value in (part.figures or {}).items() if name != "in_mlflow"}
            part.figures = {**figures, "checked": found, "database": tidied}
            part.state = ErasureState.COMPLETED
            requests.conclude(session, erasure)
            purging.due_to_tidy(session)
    receipts.file_missing(database, store)


def orphans() -> Select[Part, Erasure]:
    """Open erasures in models that are not there any more."""
    query = select(Part, Erasure).join(Erasure, Erasure.id == Part.erasure_id)
    gone = ~exists().where(Model.id == Part.model_id)
    return query.where(Part.state.in_(OPEN), Erasure.state.in_(OPEN), gone).order_by(Erasure.created_at, Erasure.id)


def looked(session: Session, store: Store, part: Part, mlflow: bool) -> dict[str, int]:
    """What is still there of a deleted model: each figure must be 0."""
    rows = session.scalar(select(func.count()).where(Example.model_id == part.model_id)) or 0
    found = {"examples of the model": rows, "files of the model": len(store.names(folder_of(part.model_id)))}
    if mlflow or (part.figures or {}).get("in_mlflow"):
        untold = select(func.count()).where(
            TrackingEvent.model_id == part.model_id, TrackingEvent.kind == TrackingEventKind.DELETED
        )
        found["deletions that MLflow has still to make"] = session.scalar(untold) or 0
    return found
