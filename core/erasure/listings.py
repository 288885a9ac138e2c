"""Lists of requests, erasures as well as restrictions: by id, by person, and the register by date of receipt."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import NotFound
from core.ledger.queries import batched
from core.tables.erasures import Erasure, ErasureState, Identifier


def find_request(session: Session, id: str) -> Erasure:
    """An erasure or a restriction, by its id. Raises NotFound."""
    found = session.get(Erasure, id)
    if found is None:
        raise NotFound("erasure_not_found", "This request does not exist.")
    return found


def find_requests(session: Session, ids: Sequence[str]) -> list[Erasure]:
    """Erasures or restrictions by their ids, in the order of the ids."""
    found: dict[str, Erasure] = {}
    for some in batched(ids):
        found.update((row.id, row) for row in session.scalars(select(Erasure).where(Erasure.id.in_(some))))
    return [found[id] for id in ids if id in found]


def page_register(
    session: Session,
    year: int | None,
    last: Erasure | None,
    limit: int,
    state: ErasureState | None = None,
    newest_first: bool = False,
) -> Sequence[Erasure]:
    """Erasures and restrictions that were received in a year, by date of receipt, after the request `last`."""
    query = select(Erasure).limit(limit)
    if year is not None:
        query = query.where(Erasure.received_at >= first_of(year), Erasure.received_at < first_of(year + 1))
    if state is not None:
        query = query.where(Erasure.state == state)
    key = sa.tuple_(Erasure.received_at, Erasure.id)
    if last is not None:
        at = sa.tuple_(last.received_at, last.id)
        query = query.where(key < at if newest_first else key > at)
    columns = (Erasure.received_at, Erasure.id)
    return session.scalars(query.order_by(*(c.desc() if newest_first else c.asc() for c in columns))).all()


def years_of(session: Session) -> list[int]:
    """The years from the first to the last request, newest first."""
    first, last = session.execute(select(func.min(Erasure.received_at), func.max(Erasure.received_at))).one()
    return list(range(last.year, first.year - 1, -1)) if first is not None else []


def first_of(year: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC)


def requests_of(session: Session, tokens: Collection[str]) -> Sequence[Erasure]:
    """All requests from a person, open or not, newest first, by the tokens of the person's identifiers."""
    ours = Erasure.id.in_(select(Identifier.erasure_id).where(Identifier.token.in_(tokens)))
    return session.scalars(select(Erasure).where(ours).order_by(Erasure.created_at.desc(), Erasure.id)).all()
