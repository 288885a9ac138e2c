"""What is stored about a person: which models have how many of their examples, and these examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.tables.ledger import Example
from core.tables.models import Model

WHOLE = func.length(Example.x) > 0
"""Of some removed examples nothing is left but their position."""


def models_of(session: Session, subject: bytes, visible: Collection[str] | None) -> list[tuple[Model, int]]:
    """The models, among the visible ones (None: all), that have examples of a person, in force or not; how many."""
    count = func.count()
    query = select(Model, count).join(Example, Example.model_id == Model.id).where(Example.subject == subject, WHOLE)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    grouped = query.group_by(Model.id).order_by(Model.name)
    return [(model, found) for model, found in session.execute(grouped)]


def examples_of(session: Session, subject: bytes, model_id: int, after: int, most: int) -> Sequence[Example]:
    """The next examples of a person in a model, after a position."""
    about = (Example.subject == subject, Example.model_id == model_id, Example.position > after, WHOLE)
    return session.scalars(select(Example).where(*about).order_by(Example.position).limit(most)).all()
