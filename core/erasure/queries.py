"""Queries about erasures: requests, their parts and trails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.erasure.receipt_content import TrailEntry
from core.errors import Conflict, NotFound
from core.ids import find_by_id
from core.ledger.queries import batched
from core.paging import invalid_cursor, page_after
from core.register import log
from core.tables.erasures import OPEN, PENDING, RESTRICTIONS, WAITING, Erasure, ErasureState, Identifier, Part, Receipt
from core.tables.ledger import Example, PendingExample
from core.tables.models import Model
from core.tables.register import RecordKind
from core.versions.erased_examples import has_forgotten, open_parts, select_parts_in
from core.versions.queries import tip_of

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
