"""Queries about erasures: requests, their parts and trails, people, and versions to purge."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import utc_text
from core.erasure.receipt_content import KeptVersions, TrailEntry, VersionFates
from core.erasure.receipt_text import KeepReason
from core.errors import Conflict, NotFound
from core.ids import find_by_id
from core.ledger.queries import batched
from core.paging import invalid_cursor, page_after
from core.register import log
from core.tables.erasures import OPEN, PENDING, RESTRICTIONS, WAITING, Erasure, ErasureState, Identifier, Part, Receipt
from core.tables.ledger import HAS_CONTENT, Example, PendingExample, RecordedPrediction
from core.tables.models import Model
from core.tables.register import RecordKind
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.erased_examples import (
    has_examples_at,
    has_forgotten,
    may_depend_on,
    open_parts,
    precedes_examples,
    select_parts_in,
)
from core.versions.queries import tip_of, versions_of

WARN_BEFORE_DUE = timedelta(days=7)
"""How long before the due date webhooks and metrics warn of an open request."""
STUCK_AFTER = timedelta(days=1)
"""A request that has been in progress for longer needs attention: most take minutes."""


def find(session: Session, id: str) -> Erasure:
    """An erasure, by its id or a prefix of it. Raises NotFound, or Conflict if the prefix is ambiguous."""
    found = find_by_id(session, select(Erasure).where(Erasure.state.not_in(RESTRICTIONS)), Erasure.id, id)
    if found is None:
        raise NotFound("erasure_not_found", "Erasure not found.")
    return found[0]


def find_restriction(session: Session, id: str) -> Erasure:
    """A restriction of processing, by its id or a prefix of it. Raises NotFound or Conflict like `find`."""
    found = find_by_id(session, select(Erasure).where(Erasure.state.in_(RESTRICTIONS)), Erasure.id, id)
    if found is None:
        raise NotFound("restriction_not_found", "Restriction not found.")
    return found[0]


def page_erasures(
    session: Session, state: ErasureState | None, overdue: bool | None, after: str | None, limit: int
) -> Sequence[Erasure]:
    """Erasures, newest first, after the erasure `after`. Raises Invalid if it does not exist.

    Restrictions are included only if `state` is one of theirs.
    """
    query = select(Erasure).where(Erasure.state.not_in(RESTRICTIONS) if state is None else Erasure.state == state)
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


def next_due(session: Session, limit: int, after: str | None = None) -> Sequence[Erasure]:
    """Pending erasures, ordered by due date, after the erasure `after`. Raises NotFound if it does not exist."""
    pending = select(Erasure).where(Erasure.state.in_(PENDING)).order_by(Erasure.due_at, Erasure.id)
    if after is not None:
        last = find(session, after)
        pending = pending.where(sa.tuple_(Erasure.due_at, Erasure.id) > sa.tuple_(last.due_at, last.id))
    return session.scalars(pending.limit(limit)).all()


def count_erasures(session: Session) -> list[tuple[ErasureState, int, int]]:
    """The number of erasures in each state, and how many of them are overdue."""
    late = func.count(sa.case((Erasure.is_overdue(now()), 1)))
    found = session.execute(select(Erasure.state, func.count(), late).group_by(Erasure.state))
    return [(ErasureState(state), count, overdue) for state, count, overdue in found]


@dataclass(frozen=True)
class OpenRequests:
    """The erasure requests that are neither completed nor refused."""

    oldest: datetime | None
    """When the oldest of them was received."""
    due_soon: int
    """How many are due within a week, or overdue."""
    stuck: int
    """How many have been in progress for more than a day."""


def measure_open(session: Session) -> OpenRequests:
    """The age of the open requests, for monitoring."""
    working, moment = [state for state in OPEN if state is not ErasureState.FAILED], now()
    soon = func.count(sa.case((Erasure.due_at < moment + WARN_BEFORE_DUE, 1)))
    stuck = sa.and_(Erasure.state.in_(working), Erasure.created_at < moment - STUCK_AFTER)
    found = select(func.min(Erasure.received_at), soon, func.count(sa.case((stuck, 1))))
    return OpenRequests(*session.execute(found.where(Erasure.state.in_(PENDING))).one())


def list_failed(session: Session) -> Sequence[Erasure]:
    return session.scalars(select(Erasure).where(Erasure.state == ErasureState.FAILED).order_by(Erasure.id)).all()


def select_waiting_with_examples() -> Select[Erasure]:
    """Erasures that wait for a decision, and restrictions, of people who have examples in force."""
    came = exists().where(Example.subject == Identifier.subject, Example.removed.is_(None))
    unlabelled = exists().where(PendingExample.subject == Identifier.subject, PendingExample.restricted.is_(False))
    ours = exists().where(Identifier.erasure_id == Erasure.id, sa.or_(came, unlabelled))
    return select(Erasure).where(Erasure.state.in_((ErasureState.UNMATCHED, *WAITING)), ours)


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


def trail_of(session: Session, erasure: Erasure) -> list[TrailEntry]:
    """The trail of an erasure: all actions whose records have not expired, in order."""
    return [trail_entry(record) for record in log.records_of(session, erasure.id)]


def trail_entry(record: Mapping[str, Any]) -> TrailEntry:
    return TrailEntry(record["kind"], record["actor"]["id"], record["at"], record["actor"]["name"])


def details_of(
    session: Session, erasures: Sequence[Erasure]
) -> tuple[dict[str, list[Part]], dict[str, list[dict[str, Any]]]]:
    """The parts and the unexpired records of several erasures, by their ids."""
    ids = [erasure.id for erasure in erasures]
    parts: dict[str, list[Part]] = {id: [] for id in ids}
    for some in batched(ids):
        theirs = select(Part).where(Part.erasure_id.in_(some)).order_by(Part.model)
        for part in session.scalars(theirs.execution_options(populate_existing=True)):
            parts[part.erasure_id].append(part)
    return parts, log.records_by_erasure(session, ids)


def reference_in(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The caller's own number for a request: that of the last filing that gives one."""
    found = [record["reference"] for record in records if "reference" in record]
    return found[-1] if found else None


def last_record(session: Session, erasure: Erasure, kind: RecordKind) -> datetime | None:
    """When an action was last performed."""
    found = [r["at"] for r in log.records_of(session, erasure.id) if r["kind"] == kind]
    return datetime.fromisoformat(found[-1]) if found else None


def receipt_of(session: Session, erasure: Erasure) -> Receipt:
    """The receipt of an erasure. Raises NotFound if there is none (yet)."""
    receipt = session.get(Receipt, erasure.receipt) if erasure.receipt else None
    if receipt is None:
        ended = f"There is no receipt: the request is {erasure.state}."
        open_ = "There is no receipt yet because the erasure is not completed."
        raise NotFound("receipt_not_found", open_ if erasure.state in PENDING else ended)
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


def examples_with_id(session: Session, model_id: int, id: str, subject: bytes) -> Sequence[Example]:
    """The stored examples of a person with an id, newest first; also those that are not in force."""
    ours = (Example.model_id == model_id, Example.id == id, Example.subject == subject, HAS_CONTENT)
    return session.scalars(select(Example).where(*ours).order_by(Example.position.desc())).all()


def example_in_force(session: Session, model_id: int, id: str) -> Example:
    """The example with an id that is in force."""
    ours = (Example.model_id == model_id, Example.id == id, Example.removed.is_(None))
    return session.scalars(select(Example).where(*ours)).one()


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


def last_trained_on(session: Session, part: Part) -> Version | None:
    """The newest version that was trained on the person's data and still has its weights."""
    trained = has_examples_at(part, Version.position, Version.removals_position)
    known = select(Version).where(Version.model_id == part.model_id, trained, Version.state != VersionState.PURGED)
    return session.scalar(known.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def must_be_purged(part: Part) -> sa.ColumnElement[bool]:
    """Condition on versions to be purged: those trained on the person's data, and those adapted from them
    before forgetting was verified."""
    return sa.and_(Version.model_id == part.model_id, may_depend_on(part, Version))


def count_purged(session: Session, part: Part) -> int:
    """How many versions were purged for the person; one that was purged for several people counts for each."""
    return session.scalar(select(func.count()).where(must_be_purged(part), Version.state == VersionState.PURGED)) or 0


def last_purge_date(session: Session, part: Part) -> str | None:
    """The date when the last version trained on the person's data is purged, if any is kept."""
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
    by_number = {version.number: version for version in found}
    for version in found:
        if version.state is VersionState.PURGED:
            continue
        if version.number in gone:
            why = KeepReason.KEPT
        elif precedes_examples(part, version.position):
            why = KeepReason.BEFORE
        else:
            why = KeepReason.DERIVED if derives_from(version, gone, by_number) else KeepReason.WITHOUT
        reasons.setdefault(why, []).append(version.number)
    return VersionFates(purged, [KeptVersions(numbers, why.value) for why, numbers in reasons.items()])


def derives_from(version: Version, gone: Collection[int], by_number: Mapping[int, Version]) -> bool:
    """Whether a network was adapted, in one or several steps, from a version trained on the person's data.

    The bytes of a version with a bound depend only on the retained examples and their ledger positions, whatever it was
    adapted from.
    """
    at: Version | None = version
    while at is not None and at.kind is VersionKind.ADAPTED:
        if at.certificate is not None and at.certificate.kind == "bound":
            return False
        if at.parent in gone:
            return True
        at = by_number.get(at.parent) if at.parent is not None else None
    return False
