"""Queries about erasures: requests, their parts and trail, people, and versions to be purged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from core.database import now, utc_text
from core.erasure.receipt_text import KeepReason
from core.erasure.report import KeptVersions, VersionFates
from core.errors import Conflict, NotFound
from core.ids import find_by_id
from core.ledger.queries import batched
from core.paging import invalid_cursor, page_after
from core.tables.erasures import OPEN, PENDING, Erasure, ErasureState, Event, EventKind, Part, Receipt
from core.tables.ledger import HAS_CONTENT, Example
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.versions.knowledge import has_forgotten, knows, may_know, never_knew
from core.versions.queries import tip_of, versions_of


def find(session: Session, id: str) -> Erasure:
    """An erasure, by its id or the beginning of it; raises NotFound if there is none, Conflict if there are several."""
    found = find_by_id(session, select(Erasure), Erasure.id, id)
    if found is None:
        raise NotFound("erasure_not_found", "There is no such erasure.")
    (erasure,) = found
    return erasure


def find_open(session: Session, subject: bytes) -> Erasure | None:
    """The erasure of a person that is held, being carried out, or has failed."""
    return session.scalar(select(Erasure).where(Erasure.subject == subject, Erasure.state.in_(PENDING)))


def page_erasures(
    session: Session, state: ErasureState | None, overdue: bool | None, after: str | None, limit: int
) -> Sequence[Erasure]:
    """Erasures, the newest first, after the erasure `after`; raises Invalid if there is none."""
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
    """Pending erasures, by their due dates."""
    pending = select(Erasure).where(Erasure.state.in_(PENDING)).order_by(Erasure.due_at, Erasure.id)
    return session.scalars(pending.limit(limit)).all()


def count_erasures(session: Session) -> list[tuple[ErasureState, int, int]]:
    """How many erasures there are by state, and how many of them are overdue."""
    late = func.count(sa.case((Erasure.is_overdue(now()), 1)))
    found = session.execute(select(Erasure.state, func.count(), late).group_by(Erasure.state))
    return [(ErasureState(state), count, overdue) for state, count, overdue in found]


def list_failed(session: Session) -> Sequence[Erasure]:
    return session.scalars(select(Erasure).where(Erasure.state == ErasureState.FAILED).order_by(Erasure.id)).all()


def select_held_with_examples() -> Select[Erasure]:
    """Held erasures of people who have examples in force."""
    came = exists().where(Example.subject == Erasure.subject, Example.removed.is_(None))
    return select(Erasure).where(Erasure.state == ErasureState.HELD, came)


def parts_of(session: Session, erasure: Erasure) -> list[Part]:
    """The parts of an erasure, one for each model, by the model's name."""
    parts = select(Part).where(Part.erasure_id == erasure.id).order_by(Part.model)
    return list(session.scalars(parts.execution_options(populate_existing=True)))


def open_parts(session: Session, model_id: int, states: Sequence[ErasureState] = OPEN) -> list[tuple[Part, Erasure]]:
    """The open parts of a model, with their erasures, the oldest first."""
    query = select_parts_in(states).where(Part.model_id == model_id)
    return [(part, erasure) for part, erasure in session.execute(query)]


def select_parts_in(states: Sequence[ErasureState]) -> Select[Part, Erasure]:
    """The query for parts in some states whose erasures are in them, too; the oldest first."""
    query = select(Part, Erasure).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.state.in_(states), Erasure.state.in_(states))
    return query.order_by(Erasure.created_at, Erasure.id)


def select_parts_of_deleted_models() -> Select[Part, Erasure]:
    """The query for open parts of deleted models."""
    return select_parts_in(OPEN).where(~exists().where(Model.id == Part.model_id))


def verified_parts(session: Session, model: Model) -> list[tuple[Part, Erasure]]:
    """The open parts of people whom the model's tip does not know; later ones are left to the next job."""
    tip = tip_of(session, model)
    return [(part, erasure) for part, erasure in open_parts(session, model.id) if has_forgotten(part, tip)]


def events_of(session: Session, erasure: Erasure) -> list[Event]:
    """The trail of an erasure: all decisions and actions, in order."""
    return list(session.scalars(select(Event).where(Event.erasure_id == erasure.id).order_by(Event.id)))


def last_event(session: Session, erasure: Erasure, kind: EventKind) -> datetime | None:
    """When something was done last."""
    return session.scalar(select(func.max(Event.at)).where(Event.erasure_id == erasure.id, Event.kind == kind))


def receipt_of(session: Session, erasure: Erasure) -> Receipt:
    """The receipt of an erasure; raises NotFound if there is none yet, or will be none."""
    receipt = session.get(Receipt, erasure.receipt) if erasure.receipt else None
    if receipt is None:
        refused = "It was refused: there will be no receipt."
        open_ = "There is no receipt yet: the erasure is not completed."
        raise NotFound("receipt_not_found", refused if erasure.state is ErasureState.REFUSED else open_)
    return receipt


def models_of(session: Session, subject: bytes, visible: Collection[str] | None) -> list[tuple[Model, int]]:
    """The models, among the visible ones (None: all), that have examples of a person, in force or not; how many."""
    count = func.count()
    query = (
        select(Model, count).join(Example, Example.model_id == Model.id).where(Example.subject == subject, HAS_CONTENT)
    )
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    grouped = query.group_by(Model.id).order_by(Model.name)
    return [(model, found) for model, found in session.execute(grouped)]


def examples_of(session: Session, subject: bytes, model_id: int, after: int, limit: int) -> Sequence[Example]:
    """The next examples of a person in a model, after a position."""
    about = (Example.subject == subject, Example.model_id == model_id, Example.position > after, HAS_CONTENT)
    return session.scalars(select(Example).where(*about).order_by(Example.position).limit(limit)).all()


def positions_of(session: Session, subject: bytes | None, model_id: int, in_force: bool = False) -> list[int]:
    """The positions of a person's examples in a model, whether in force or not, or of those in force."""
    query = select(Example.position).where(Example.model_id == model_id, Example.subject == subject)
    return sorted(session.scalars(query.where(Example.removed.is_(None)) if in_force else query))


def model_ids_of(session: Session, subjects: Iterable[bytes | None]) -> list[int]:
    """The models that have examples of some people, in the order in which they are locked."""
    found: set[int] = set()
    for some in batched(list(subjects)):
        found.update(session.scalars(select(Example.model_id).where(Example.subject.in_(some)).distinct()))
    return sorted(found)


def subjects_in_force(session: Session, subjects: Sequence[bytes]) -> set[bytes]:
    """Which of some people have examples in force."""
    found: set[bytes] = set()
    for some in batched(subjects):
        in_force = (Example.subject.in_(some), Example.removed.is_(None))
        found.update(s for s in session.scalars(select(Example.subject).where(*in_force).distinct()) if s is not None)
    return found


def all_subjects(session: Session) -> list[bytes]:
    """The hashes of all subjects in the database."""
    known = select(Example.subject).where(Example.subject.is_not(None)).distinct()
    return [subject for subject in session.scalars(known) if subject is not None]


def trained_positions(session: Session, part: Part, at: int) -> list[int]:
    """Positions of those of a person's examples that a version at a position was trained on."""
    found: list[int] = []
    for some in batched(part.positions):
        training = (Example.model_id == part.model_id, ~Example.holdout, Example.position <= at)
        found += session.scalars(select(Example.position).where(*training, Example.position.in_(some)))
    return found


def last_that_knew(session: Session, part: Part) -> Version | None:
    """The newest version that knew the person and still has its weights."""
    known = select(Version).where(Version.model_id == part.model_id, knows(part, Version.position))
    known = known.where(Version.state != VersionState.PURGED)
    return session.scalar(known.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def comparison_of(session: Session, version: Version) -> Comparison | None:
    """The comparison of a version, adapted or retrained, with the other one at its position."""
    either = Comparison.retrained if version.kind is VersionKind.TRAINED else Comparison.adapted
    same = select(Comparison).where(Comparison.model_id == version.model_id, either == version.number)
    return session.scalar(same.order_by(Comparison.id.desc()).limit(1))


def must_be_purged(part: Part) -> sa.ColumnElement[bool]:
    """Condition on versions to be purged: those that knew the person, and those adapted from them before forgetting was
    verified."""
    return sa.and_(Version.model_id == part.model_id, may_know(part, Version))


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
        why = KeepReason.BEFORE if never_knew(part, version.position) else KeepReason.WITHOUT
        reasons.setdefault(KeepReason.KEPT if version.number in gone else why, []).append(version.number)
    return VersionFates(purged, [KeptVersions(numbers, why.value) for why, numbers in reasons.items()])
