"""Queries about the examples of a person: in which models, at which positions, in force or not."""

from collections.abc import Collection, Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.ledger.queries import batched
from core.tables.erasures import Identifier, Part
from core.tables.ledger import HAS_CONTENT, Example, PendingExample, RecordedPrediction
from core.tables.models import Model


def models_of(session: Session, subject: bytes, visible: Collection[str] | None) -> list[tuple[Model, int]]:
    """The visible models (None: all) that have examples of a person, in force or not, with the number of their ids."""
    stored = select(Example.model_id, Example.id).where(Example.subject == subject, HAS_CONTENT)
    unlabelled = select(PendingExample.model_id, PendingExample.id).where(PendingExample.subject == subject)
    found = stored.union(unlabelled).subquery()
    query = select(Model, func.count()).join(found, found.c.model_id == Model.id)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    grouped = query.group_by(Model.id).order_by(Model.name)
    return [(model, count) for model, count in session.execute(grouped)]


def examples_with_id(session: Session, model_id: int, id: str, subject: bytes) -> Sequence[Example]:
    """The stored examples of a person with an id, newest first; also those that are not in force."""
    ours = (Example.model_id == model_id, Example.id == id, Example.subject == subject, HAS_CONTENT)
    return session.scalars(select(Example).where(*ours).order_by(Example.position.desc())).all()


def example_in_force(session: Session, model_id: int, id: str) -> Example:
    """The example with an id that is in force."""
    ours = (Example.model_id == model_id, Example.id == id, Example.removed.is_(None))
    return session.scalars(select(Example).where(*ours)).one()


def examples_of(session: Session, subject: bytes, model_id: int, after: int, limit: int) -> Sequence[Example]:
    """The next examples of a person in a model after a position.

    An example that returned into force, for example because a request was withdrawn, is stored more than once. Of
    identical ones, only the newest is returned, and those with a recorded prediction.
    """
    about = (Example.subject == subject, Example.model_id == model_id, HAS_CONTENT)
    contents = (Example.id, Example.x, Example.y, Example.weight, Example.time, Example.source, Example.unseen)
    repeated = select(Example.id).where(*about).group_by(Example.id).having(func.count() > 1)
    newest = select(func.max(Example.position)).where(*about, Example.id.in_(repeated)).group_by(*contents)
    predicted = select(RecordedPrediction.position).where(RecordedPrediction.model_id == model_id)
    shown = sa.or_(Example.id.not_in(repeated), Example.position.in_(newest), Example.position.in_(predicted))
    found = select(Example).where(*about, Example.position > after, shown)
    return session.scalars(found.order_by(Example.position).limit(limit)).all()


def pending_of(session: Session, subject: bytes, model_id: int, after: str, limit: int) -> Sequence[PendingExample]:
    """The next examples of a person without a label in a model after an id."""
    about = (PendingExample.subject == subject, PendingExample.model_id == model_id, PendingExample.id > after)
    return session.scalars(select(PendingExample).where(*about).order_by(PendingExample.id).limit(limit)).all()


def predictions_of(session: Session, model_id: int, positions: Sequence[int]) -> dict[int, RecordedPrediction]:
    """The recorded predictions for examples at some positions."""
    found: dict[int, RecordedPrediction] = {}
    for some in batched(positions):
        ours = (RecordedPrediction.model_id == model_id, RecordedPrediction.position.in_(some))
        found.update((row.position, row) for row in session.scalars(select(RecordedPrediction).where(*ours)))
    return found


def positions_of(session: Session, subjects: Sequence[bytes], model_id: int, in_force: bool = False) -> list[int]:
    """Positions of a person's examples in a model: all, or only those in force."""
    query = select(Example.position).where(Example.model_id == model_id, Example.subject.in_(subjects))
    return sorted(session.scalars(query.where(Example.removed.is_(None)) if in_force else query))


def count_examples(session: Session, model_id: int, positions: Iterable[int]) -> int:
    """How many different examples are stored at some positions.

    An example may be stored more than once, because it returned into force or was corrected; of others, only the
    position is left.
    """
    ids: set[str] = set()
    for some in batched(sorted(positions)):
        stored = select(Example.id).where(Example.model_id == model_id, Example.position.in_(some), HAS_CONTENT)
        ids.update(session.scalars(stored))
    return len(ids)


def model_ids_of(session: Session, subjects: Iterable[bytes]) -> list[int]:
    """Ids of the models that have examples of the given people, in the order in which they are locked."""
    found: set[int] = set()
    for some in batched(list(subjects)):
        for table in (Example, PendingExample):
            found.update(session.scalars(select(table.model_id).where(table.subject.in_(some)).distinct()))
    return sorted(found)


def subjects_in_force(session: Session, subjects: Sequence[bytes]) -> set[bytes]:
    """The given people who have examples in force or in quarantine."""
    found: set[bytes] = set()
    for some in batched(subjects):
        in_force = (Example.subject.in_(some), sa.or_(Example.removed.is_(None), Example.quarantine.is_not(None)))
        found.update(s for s in session.scalars(select(Example.subject).where(*in_force).distinct()) if s is not None)
        free = (PendingExample.subject.in_(some), PendingExample.restricted.is_(False))
        waiting = session.scalars(select(PendingExample.subject).where(*free).distinct())
        found.update(s for s in waiting if s is not None)
    return found


def requests_with_new_examples(session: Session, ids: Sequence[str]) -> set[str]:
    """Of some requests, those whose people have examples that the requests have not found yet, in force or not."""
    part = (Part.erasure_id == Identifier.erasure_id, Part.model_id == Example.model_id)
    known = sa.exists().where(*part, Part.removal_position >= Example.position)
    found: set[str] = set()
    for some in batched(ids):
        query = select(Identifier.erasure_id).join(Example, Example.subject == Identifier.subject)
        found.update(session.scalars(query.where(Identifier.erasure_id.in_(some), ~known).distinct()))
    return found


def all_subjects(session: Session) -> list[bytes]:
    """The hashes of all subjects in the database."""
    found: set[bytes | None] = set()
    for table in (Example, PendingExample):
        found.update(session.scalars(select(table.subject).where(table.subject.is_not(None)).distinct()))
    return sorted(subject for subject in found if subject is not None)
