"""Queries about erasures: requests, their parts and trails, people, and versions to purge."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import utc_text
from core.erasure.receipt_text import KeepReason
from core.erasure.report import KeptVersions, VersionFates
from core.errors import Conflict, NotFound
from core.ids import find_by_id
from core.ledger.queries import batched
from core.paging import invalid_cursor, page_after
from core.tables.erasures import OPEN, PENDING, Erasure, ErasureState, Event, EventKind, Part, Receipt
from core.tables.ledger import HAS_CONTENT, Example, PendingExample, RecordedPrediction
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.erased_examples import (
    has_examples_at,
    has_forgotten,
    may_depend_on,
    open_parts,
    precedes_examples,
    select_parts_in,
)
from core.versions.queries import tip_of, versions_of


def find(session: Session, id: str) -> Erasure:
    """An erasure, by its id or a prefix of it. Raises NotFound, or Conflict if the prefix is ambiguous."""
    found = find_by_id(session, select(Erasure), Erasure.id, id)
    if found is None:
        raise NotFound("erasure_not_found", "Erasure not found.")
    (erasure,) = found
    return erasure


def find_open(session: Session, subject: bytes) -> Erasure | None:
    """The erasure of a person that is held, in progress, or has failed."""
    return session.scalar(select(Erasure).where(Erasure.subject == subject, Erasure.state.in_(PENDING)))


def page_erasures(
    session: Session, state: ErasureState | None, overdue: bool | None, after: str | None, limit: int
) -> Sequence[Erasure]:
    """Erasures, newest first, after the erasure `after`. Raises Invalid if it does not exist."""
    query = select(Erasure)
    if state is not None:
        query = query.where(Erasure.state == state)
    if overdue is not None:
        late = Erasure.is_overdue(now())
        query = query.where(late if overdue else ~late)
    try:
        last = None if after is None else find(session, after)
    except (NotFound, Conflict):
        raise invalid_cursor() from None
    if last is not None and last.id != after:
        raise invalid_cursor()
    key = (last.created_at, last.id) if last is not None else None
    return session.scalars(page_after(query, (Erasure.created_at, Erasure.id), key, limit)).all()


def next_due(session: Session, limit: int) -> Sequence[Erasure]:
    """Pending erasures, ordered by due date."""
    pending = select(Erasure).where(Erasure.state.in_(PENDING)).order_by(Erasure.due_at, Erasure.id)
    return session.scalars(pending.limit(limit)).all()


def count_erasures(session: Session) -> list[tuple[ErasureState, int, int]]:
    """The number of erasures in each state, and how many of them are overdue."""
    late = func.count(sa.case((Erasure.is_overdue(now()), 1)))
    found = session.execute(select(Erasure.state, func.count(), late).group_by(Erasure.state))
    return [(ErasureState(state), count, overdue) for state, count, overdue in found]


def list_failed(session: Session) -> Sequence[Erasure]:
    return session.scalars(select(Erasure).where(Erasure.state == ErasureState.FAILED).order_by(Erasure.id)).all()


def select_held_with_examples() -> Select[Erasure]:
    """Held erasures of people who have examples in force."""
    came = exists().where(Example.subject == Erasure.subject, Example.removed.is_(None))
    unlabelled = exists().where(PendingExample.subject == Erasure.subject, PendingExample.restricted.is_(False))
    return select(Erasure).where(Erasure.state == ErasureState.HELD, sa.or_(came, unlabelled))


def parts_of(session: Session, erasure: Erasure) -> list[Part]:
    """The parts of an erasure, one for each model, by the model's name."""
    parts = select(Part).where(Part.erasure_id == erasure.id).order_by(Part.model)
    return list(session.scalars(parts.execution_options(populate_existing=True)))


def select_parts_of_deleted_models() -> Select[Part, Erasure]:
    """Query for open parts of deleted models."""
    return select_parts_in(OPEN).where(~exists().where(Model.id == Part.model_id))


def verified_parts(session: Session, model: Model) -> list[tuple[Part, Erasure]]:
    """The parts that the job is verifying or purging and whose people's data the tip was trained without."""
    tip, at_work = tip_of(session, model), (ErasureState.VERIFYING, ErasureState.PURGING)
    found = open_parts(session, model.id)
    return [(part, erasure) for part, erasure in found if part.state in at_work and has_forgotten(part, tip)]


def events_of(session: Session, erasure: Erasure) -> list[Event]:
    """The trail of an erasure: all actions, in order."""
    return list(session.scalars(select(Event).where(Event.erasure_id == erasure.id).order_by(Event.id)))


def last_event(session: Session, erasure: Erasure, kind: EventKind) -> datetime | None:
    """When an action was last performed."""
    return session.scalar(select(func.max(Event.at)).where(Event.erasure_id == erasure.id, Event.kind == kind))


def receipt_of(session: Session, erasure: Erasure) -> Receipt:
    """The receipt of an erasure. Raises NotFound if there is none (yet)."""
    receipt = session.get(Receipt, erasure.receipt) if erasure.receipt else None
    if receipt is None:
        refused = "The erasure was refused, so there is no receipt."
        open_ = "There is no receipt yet because the erasure is not completed."
        raise NotFound("receipt_not_found", refused if erasure.state is ErasureState.REFUSED else open_)
    return receipt


def models_of(session: Session, subject: bytes, visible: Collection[str] | None) -> list[tuple[Model, int]]:
    """The visible models (None: all) that have examples of a person, in force or not, with their number."""
    stored = select(Example.model_id).where(Example.subject == subject, HAS_CONTENT)
    unlabelled = select(PendingExample.model_id).where(PendingExample.subject == subject)
    found = stored.union_all(unlabelled).subquery()
    query = select(Model, func.count()).join(found, found.c.model_id == Model.id)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    grouped = query.group_by(Model.id).order_by(Model.name)
    return [(model, count) for model, count in session.execute(grouped)]


def examples_of(session: Session, subject: bytes, model_id: int, after: int, limit: int) -> Sequence[Example]:
    """The next examples of a person in a model after a position."""
    about = (Example.subject == subject, Example.model_id == model_id, Example.position > after, HAS_CONTENT)
    return session.scalars(select(Example).where(*about).order_by(Example.position).limit(limit)).all()


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


def positions_of(session: Session, subject: bytes | None, model_id: int, in_force: bool = False) -> list[int]:
    """Positions of a person's examples in a model: all, or only those in force."""
    query = select(Example.position).where(Example.model_id == model_id, Example.subject == subject)
    return sorted(session.scalars(query.where(Example.removed.is_(None)) if in_force else query))


def model_ids_of(session: Session, subjects: Iterable[bytes | None]) -> list[int]:
    """Ids of the models that have examples of the given people, in the order in which they are locked."""
    found: set[int] = set()
    for some in batched(list(subjects)):
        for table in (Example, PendingExample):
            found.update(session.scalars(select(table.model_id).where(table.subject.in_(some)).distinct()))
    return sorted(found)


def subjects_in_force(session: Session, subjects: Sequence[bytes]) -> set[bytes]:
    """The given people who have examples in force."""
    found: set[bytes] = set()
    for some in batched(subjects):
        in_force = (Example.subject.in_(some), Example.removed.is_(None))
        found.update(s for s in session.scalars(select(Example.subject).where(*in_force).distinct()) if s is not None)
        free = (PendingExample.subject.in_(some), PendingExample.restricted.is_(False))
        waiting = session.scalars(select(PendingExample.subject).where(*free).distinct())
        found.update(s for s in waiting if s is not None)
    return found


def all_subjects(session: Session) -> list[bytes]:
    """The hashes of all subjects in the database."""
    found: set[bytes | None] = set()
    for table in (Example, PendingExample):
        found.update(session.scalars(select(table.subject).where(table.subject.is_not(None)).distinct()))
    return sorted(subject for subject in found if subject is not None)


def trained_positions(session: Session, part: Part, at: int) -> list[int]:
    """Positions of the person's examples that a version at a position was trained on."""
    found: list[int] = []
    for some in batched(part.positions):
        training = (Example.model_id == part.model_id, ~Example.holdout, Example.position <= at)
        found += session.scalars(select(Example.position).where(*training, Example.position.in_(some)))
    return found


def last_that_knew(session: Session, part: Part) -> Version | None:
    """The newest version that knew the person and still has its weights."""
    known = select(Version).where(Version.model_id == part.model_id, has_examples_at(part, Version.position))
    known = known.where(Version.state != VersionState.PURGED)
    return session.scalar(known.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def must_be_purged(part: Part) -> sa.ColumnElement[bool]:
    """Condition on versions to be purged: those that knew the person, and those adapted from them before forgetting was
    verified."""
    return sa.and_(Version.model_id == part.model_id, may_depend_on(part, Version))


def count_purged(session: Session, part: Part) -> int:
    """How many versions were purged for the person; one that was purged for several people counts for each."""
    return session.scalar(select(func.count()).where(must_be_purged(part), Version.state == VersionState.PURGED)) or 0


def last_purge_date(session: Session, part: Part) -> str | None:
    """The date when the last version that knew the person is purged, if any is kept."""
    last = session.scalar(
        select(func.max(Version.purge_at)).where(must_be_purged(part), Version.state != VersionState.PURGED)
    )
    return utc_text(last) if last else None


def version_fates(session: Session, part: Part) -> VersionFates:
    """Which of the model's versions were purged for the person, and which are kept and why."""
    found = versions_of(session, part.model_id)
    gone = set(session.scalars(select(Version.number).where(must_be_purged(part))))
    purged = [v.number for v in found if v.number in gone and v.state is VersionState.PURGED]
    reasons: dict[KeepReason, list[int]] = {}
    for version in found:
        if version.state is VersionState.PURGED:
            continue
        why = KeepReason.BEFORE if precedes_examples(part, version.position) else KeepReason.WITHOUT
        reasons.setdefault(KeepReason.KEPT if version.number in gone else why, []).append(version.number)
    return VersionFates(purged, [KeptVersions(numbers, why.value) for why, numbers in reasons.items()])
