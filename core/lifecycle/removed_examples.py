"""Deleting examples that were removed, once no job and no version needs them. The job `erase` does it on its way."""

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, aliased

from core.analyses.records import delete_analyses
from core.database import rows_changed
from core.jobs.queries import has_unfinished
from core.ledger import encodings, journal
from core.ledger.restrictions import claimed_positions
from core.tables.jobs import JobKind
from core.tables.ledger import HAS_CONTENT, Example
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Version
from core.versions.purging import has_figures


def purge_removed(session: Session, model: Model) -> int:
    """Delete the removed examples that neither the champion nor the tip depends on; returns how many.

    If an older version was trained on an example of a person, or exact scores of it are stored, the hash of the person
    and the positions are kept: they identify the versions to purge, and the scores to delete, if the person requests
    erasure.
    """
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return 0
    journal.forget_contents(session, model.id, unneeded)
    trained = sa.exists().where(
        Version.model_id == model.id,
        has_figures(),
        Version.position >= Example.position,
        Version.removals_position < Example.removed,
    )
    # one range for all windows: a condition for each of them would take long in a long history
    ends = select(func.min(QualityWindow.first_position), func.max(QualityWindow.last_position))
    first, last = session.execute(ends.where(QualityWindow.model_id == model.id, ~QualityWindow.rounded)).one()
    known = trained if first is None else sa.or_(trained, Example.position.between(first, last))
    kept = (unneeded, Example.subject.is_not(None), known)
    nothing = {"x": b"", "y": 0.0, "id": "", "weight": None, "time": None, "source": None, "unseen": None}
    encodings.forget_matching(session, model.id, sa.and_(unneeded, HAS_CONTENT))
    blank = update(Example).where(*kept, HAS_CONTENT).values(nothing)
    rest = delete(Example).where(unneeded, sa.or_(Example.subject.is_(None), ~known))
    deleted = rows_changed(session, blank) + rows_changed(session, rest)
    if deleted:  # their results may name the examples
        delete_analyses(session, model.id, before=model.head)
    return deleted


def has_removed_examples(session: Session, model: Model) -> bool:
    """Whether `purge_removed` would delete anything."""
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return False
    return session.scalar(select(Example.position).where(unneeded, HAS_CONTENT).limit(1)) is not None


@cache  # building the expression takes longer than running the query
def may_have_unneeded() -> sa.ColumnElement[bool]:
    """Condition on models for which `has_removed_examples` may be true: neither champion nor tip needs some example.

    Thousands of models that keep removed examples for their versions cost the tick one query.
    """
    model, champion, tip = aliased(Model), aliased(Version), aliased(Version)
    found = select(model.id)
    unneeded: list[sa.ColumnElement[bool]] = []
    for version, number in ((champion, model.champion), (tip, model.tip)):
        found = found.outerjoin(version, sa.and_(version.model_id == model.id, version.number == number))
        unneeded.append(sa.or_(version.number.is_(None), free_of(version.removals_position, version.position)))
    removed = (Example.model_id == model.id, Example.removed.is_not(None), HAS_CONTENT, Example.quarantine.is_(None))
    return Model.id.in_(found.where(sa.exists().where(*removed, *unneeded)))


def free_of(removals: Any, position: Any) -> sa.ColumnElement[bool]:
    """Condition on examples that a version was not trained on: removed before its position, or added after it."""
    return sa.or_(Example.removed <= removals, Example.position > position)


def select_unneeded(session: Session, model: Model) -> sa.ColumnElement[bool] | None:
    """Condition on removed examples that are no longer needed; None while a job may be reading them."""
    if has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN, JobKind.REBUILD):
        return None
    numbers = [number for number in (model.champion, model.tip) if number]
    serving = select(Version.position, Version.removals_position).where(
        Version.model_id == model.id, Version.number.in_(numbers)
    )
    free = [free_of(removals, at) for at, removals in session.execute(serving)]
    return sa.and_(
        Example.model_id == model.id,
        Example.removed.is_not(None),
        *free,
        Example.quarantine.is_(None),
        Example.position.not_in(claimed_positions(session, model.id)),
    )
