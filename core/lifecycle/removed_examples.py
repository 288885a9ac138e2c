"""Deleting examples that were removed, once no job and no version needs them. The job `erase` does it on its way."""

import sqlalchemy as sa
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.database import rows_changed
from core.jobs.queries import has_unfinished
from core.ledger.restrictions import restricted_positions
from core.tables.jobs import JobKind
from core.tables.ledger import HAS_CONTENT, Example
from core.tables.models import Model
from core.tables.versions import Version, VersionState


def purge_removed(session: Session, model: Model) -> int:
    """Delete the removed examples that neither the champion nor the tip depends on; returns how many.

    If an older version was trained on an example of a person, the hash of the person and the positions are kept: they
    identify the versions to purge if the person requests erasure.
    """
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return 0
    known = sa.exists().where(
        Version.model_id == model.id,
        Version.state != VersionState.PURGED,
        Version.position >= Example.position,
        Version.position < Example.removed,
    )
    kept = (unneeded, Example.subject.is_not(None), known)
    blank = update(Example).where(*kept, HAS_CONTENT).values(x=b"", y=0.0, id="", weight=None, time=None, source=None)
    rest = delete(Example).where(unneeded, sa.or_(Example.subject.is_(None), ~known))
    return rows_changed(session, blank) + rows_changed(session, rest)


def has_removed_examples(session: Session, model: Model) -> bool:
    """Whether `purge_removed` would delete anything."""
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return False
    return session.scalar(select(Example.position).where(unneeded, HAS_CONTENT).limit(1)) is not None


def select_unneeded(session: Session, model: Model) -> sa.ColumnElement[bool] | None:
    """Condition on removed examples that are no longer needed; None while a job may be reading them."""
    if has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
        return None
    numbers = [number for number in (model.champion, model.tip) if number]
    serving = select(func.min(Version.position)).where(Version.model_id == model.id, Version.number.in_(numbers))
    position: int | None = session.scalar(serving) if numbers else None
    removed = Example.removed <= (model.head if position is None else position)
    restricted = restricted_positions(session, model.id)
    return sa.and_(
        Example.model_id == model.id, removed, Example.quarantine.is_(None), Example.position.not_in(restricted)
    )
