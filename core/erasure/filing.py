"""Filing requests: a new one for each person, or an addition to the open one."""

import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.clock import now
from core.database import utc_text
from core.erasure import identifiers
from core.erasure.due_dates import due_date, may_extend
from core.erasure.queries import last_record
from core.erasure.request_details import RequestDetails
from core.erasure.state_changes import first_state
from core.errors import Conflict
from core.ledger import journal
from core.register import log
from core.tables.erasures import Erasure, ErasureState
from core.tables.register import RecordKind


def file_all(
    session: Session, filings: Sequence[RequestDetails], secret: bytes, by: str, request_id: str | None
) -> tuple[list[Erasure], set[str]]:
    """File requests, or return the open ones of the same people; a held request stays held.

    Also returns the ids of open requests to which identifiers were added. Raises Conflict if the identifiers of one
    filing are in several open requests.
    """
    owners = identifiers.owners_of(session, {subject for filing in filings for subject in filing.subjects})
    begun: set[str] = set()
    grown: set[str] = set()
    for filing in filings:
        id = owner_of(filing, owners)
        if id is None:
            id = str(uuid.uuid4())
            session.add(new_erasure(id, filing, first_state(session, filing), secret, by, request_id))
            begun.add(id)
        elif not set(filing.subjects) <= owners.keys():
            grown.add(id)
        owners |= dict.fromkeys(filing.subjects, id)
    session.flush()
    identifiers.claim(session, owners, secret)
    begun -= join_others(session, owners, begun)
    filed = [session.get_one(Erasure, owner_of(filing, owners)) for filing in filings]
    for filing, erasure in zip(filings, filed, strict=True):
        if erasure.id in begun:
            journal.note_request(session, erasure.id)
        else:
            move_receipt_date(session, erasure, filing)
            journal.update_request(session, erasure.id)
        # similar spellings of identifiers that this filing does not repeat still count
        partial = erasure.id not in begun and not set(identifiers.subjects_of(session, erasure)) <= set(filing.subjects)
        erasure.near_matches = max(erasure.near_matches if partial else 0, filing.near_matches)
        record(session, filing, erasure, secret, by)
        if erasure.id in begun and erasure.state is ErasureState.HELD:
            log.record(session, RecordKind.HELD, by, erasure.id)
        begun.discard(erasure.id)
    return filed, grown


def file_restriction(
    session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None
) -> Erasure:
    """File a restriction of processing, or return the one that is in effect for the same person."""
    id = owner_of(filing, identifiers.owners_of(session, filing.subjects, restriction=True))
    if id is None:
        id = str(uuid.uuid4())
        session.add(new_erasure(id, filing, ErasureState.RESTRICTED, secret, by, request_id))
        session.flush()
    identifiers.claim(session, dict.fromkeys(filing.subjects, id), secret, restriction=True)
    owners = identifiers.owners_of(session, filing.subjects, restriction=True)
    if owners[filing.subject] != id:  # another transaction was faster
        session.execute(delete(Erasure).where(Erasure.id == id))
    restriction = session.get_one(Erasure, owners[filing.subject])
    if restriction.id == id:
        journal.note_request(session, id)
    record(session, filing, restriction, secret, by, RecordKind.RESTRICTED)
    return restriction


def owner_of(filing: RequestDetails, owners: Mapping[bytes, str]) -> str | None:
    """The id of the open request that a filing belongs to. Raises Conflict if there are several."""
    found = sorted({owners[subject] for subject in filing.subjects if subject in owners})
    if len(found) > 1:
        message = f"These identifiers are in different open requests: {', '.join(found)}. File the request with the "
        message += "identifiers of one of them, or refuse the others first."
        raise Conflict("erasure_ambiguous", message)
    return found[0] if found else None


def join_others(session: Session, owners: dict[bytes, str], begun: set[str]) -> set[str]:
    """Give up requests whose identifiers another transaction has just claimed; returns their ids."""
    lost: set[str] = set()
    for subject, id in identifiers.owners_of(session, owners).items():
        if owners[subject] != id:
            lost.add(owners[subject])
            owners[subject] = id
    for id in lost & begun:
        session.execute(delete(Erasure).where(Erasure.id == id))
    return lost


def new_erasure(
    id: str, filing: RequestDetails, state: ErasureState, secret: bytes, by: str, request_id: str | None
) -> Erasure:
    since = filing.received_at or now()
    return Erasure(
        id=id,
        token=identifiers.token_of(filing.subject, secret),
        reason=filing.reason,
        requested_by=by,
        request_id=request_id,
        received_at=since,
        due_at=filing.due_at or due_date(since),
        repeats=filing.repeats,
        state=state,
    )


def move_receipt_date(session: Session, erasure: Erasure, filing: RequestDetails) -> None:
    """Move the dates of a request that had been received earlier than was known."""
    if filing.received_at is None or filing.received_at >= erasure.received_at:
        return
    erasure.received_at = filing.received_at
    extended_at = last_record(session, erasure, RecordKind.EXTENDED)
    # an extension counts if it was made within the first month, which now begins earlier
    in_time = extended_at is not None and may_extend(filing.received_at, extended_at)
    erasure.due_at = due_date(filing.received_at, extended=in_time)


def record(
    session: Session,
    filing: RequestDetails,
    erasure: Erasure,
    secret: bytes,
    by: str,
    kind: RecordKind = RecordKind.FILED,
) -> None:
    """Record a filing in the register."""
    tokens = {identifiers.token_of(subject, secret) for subject in filing.subjects}
    log.record(
        session,
        kind,
        by,
        erasure.id,
        subject_token=erasure.token,
        alias_tokens=sorted(tokens - {erasure.token}) or None,
        received_at=utc_text(erasure.received_at),
        due_at=utc_text(erasure.due_at),
        reference=filing.reference,
        reason=filing.reason is not None,
    )
