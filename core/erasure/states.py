"""The state machine of erasures: nobody else changes the state of one, or of its part in a model.

    held -> received -> adapting -> verifying -> purging -> completed
      |        |           |            |           |
      |        +-----------+------------+-----------+--> failed -> received, or adapting
      +------> refused, as from any state in which nothing is deleted yet

A job that is repeated begins again at `adapting`, and what came about a person meanwhile puts a part back to
`received`, even one that is completed. The erasure as a whole stands where the part is that is furthest behind. Each
function is one transition, with its line in the trail and its times; the caller's transaction holds the locks.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dateutil.relativedelta import relativedelta
from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from core.database import Database, dialect_insert, now, utc_text
from core.erasure import receipts, report
from core.erasure.queries import events_of, find_open, last_event, open_parts, parts_of
from core.erasure.receipt_text import write_statement
from core.erasure.report import ErasureReport, TrailEntry, report_json
from core.errors import Conflict
from core.ledger.queries import batched
from core.tables.erasures import OPEN, PENDING, Erasure, ErasureState, Event, EventKind, Part
from core.tables.figures import JobError
from core.tables.models import Model
from core.tables.webhooks import WebhookEvent
from core.webhooks.events import emit

WARN_BEFORE_DUE = timedelta(days=7)
"""How long before its due date a request that is still open is warned about."""
HELD, RECEIVED, PURGING = ErasureState.HELD, ErasureState.RECEIVED, ErasureState.PURGING
COMPLETED, FAILED, REFUSED = ErasureState.COMPLETED, ErasureState.FAILED, ErasureState.REFUSED

TRANSITIONS: dict[ErasureState, frozenset[ErasureState]] = {
    HELD: frozenset({HELD, RECEIVED, PURGING, REFUSED}),
    **dict.fromkeys(OPEN, frozenset({*OPEN, COMPLETED, REFUSED})),
    PURGING: frozenset({*OPEN, COMPLETED}),
    COMPLETED: frozenset({COMPLETED, RECEIVED}),
    REFUSED: frozenset(),
}
"""The states that an erasure, or a part of one, may go to from each state."""
DECISIONS: dict[EventKind, tuple[Sequence[ErasureState], str, str]] = {
    EventKind.APPROVED: ((HELD,), "erasure_not_held", "The erasure does not wait for an approval: it is {}."),
    EventKind.REFUSED: (PENDING, "erasure_ended", "The erasure has ended already: {}."),
    EventKind.EXTENDED: (PENDING, "erasure_ended", "The erasure has ended already: {}."),
    EventKind.RETRIED: ((FAILED,), "erasure_not_failed", "The erasure has not failed: it is {}."),
}
"""For each decision: the states in which it can be made, and the error code and message in all others."""


@dataclass(frozen=True)
class RequestDetails:
    """A person's request, as it is filed."""

    subject: bytes
    reason: str | None = None
    received_at: datetime | None = None
    hold: bool = False


def months_after(moment: datetime, months: int) -> datetime:
    """The same day and time so many months later; the last day of a shorter month.

    >>> months_after(datetime(2026, 1, 31), 1)
    datetime.datetime(2026, 2, 28, 0, 0)
    """
    due: datetime = moment + relativedelta(months=months)
    return due


def token_of(subject: bytes, secret: bytes) -> str:
    """The token by which receipts refer to the person."""
    return hmac.digest(secret, b"receipt:" + subject, "sha256").hex()


def move(row: Erasure | Part, state: ErasureState) -> None:
    """Change the state of an erasure, or of its part in a model."""
    if state not in TRANSITIONS[row.state]:
        raise ValueError(f"what is {row.state} cannot become {state}")
    row.state = state


def record_event(session: Session, erasure: Erasure, kind: EventKind, by: str) -> None:
    """Add to the trail what the holder of a key does, in the transaction that does it."""
    session.add(Event(erasure_id=erasure.id, kind=kind, by=by))
    session.flush()


def decide(session: Session, erasure: Erasure, kind: EventKind, by: str) -> None:
    """Note a decision; Conflict if it cannot be made in this state."""
    states, code, message = DECISIONS[kind]
    if erasure.state not in states:
        raise Conflict(code, message.format(erasure.state))
    record_event(session, erasure, kind, by)


def file(session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None) -> Erasure:
    """Note a request, or find the one that is open for the same person; one that is held stays held."""
    erasure = find_open(session, filing.subject)
    begun = erasure is None
    if erasure is None:
        since = filing.received_at or now()
        values = {
            "id": str(uuid.uuid4()),
            "subject": filing.subject,
            "token": token_of(filing.subject, secret),
            "reason": filing.reason,
            "asked_by": by,
            "request_id": request_id,
            "received_at": since,
            "due_at": months_after(since, 1),
            "state": HELD if filing.hold else RECEIVED,
        }
        # somebody else may just have begun it; as an error it would be in PostgreSQL's log, with the hash
        session.execute(dialect_insert(session, Erasure).values(values).on_conflict_do_nothing())
        erasure = find_open(session, filing.subject)
        assert erasure is not None
    elif filing.received_at is not None and filing.received_at < erasure.received_at:
        erasure.received_at = filing.received_at
        extended_at = last_event(session, erasure, EventKind.EXTENDED)
        # an extension counts if it was told within the first month, which began earlier than was known
        in_time = extended_at is not None and extended_at <= months_after(filing.received_at, 1)
        erasure.due_at = months_after(filing.received_at, 3 if in_time else 1)
    record_event(session, erasure, EventKind.FILED, by)
    if begun and erasure.state is HELD:
        record_event(session, erasure, EventKind.HELD, by)
    return erasure


def begin_part(session: Session, erasure: Erasure, model: Model) -> Part:
    """A part for a model in which nothing of the person was found before."""
    state = HELD if erasure.state is HELD else RECEIVED
    part = Part(erasure_id=erasure.id, model_id=model.id, model=model.name, state=state, positions=[], restricted=[])
    session.add(part)
    return part


def receive_part(part: Part, held: bool = False) -> None:
    """There is something of the person in a model, or something new: it is to be forgotten, once nobody holds it."""
    move(part, HELD if held else RECEIVED)
    part.error = None


def approve(session: Session, erasure: Erasure, by: str) -> None:
    """A request that was held shall be carried out; its parts follow by `receive_part` or `begin_purge`."""
    decide(session, erasure, EventKind.APPROVED, by)
    move(erasure, RECEIVED)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """A request, with all its parts, is refused; Conflict if anything was deleted already."""
    parts = parts_of(session, erasure)
    if erasure.state in PENDING and any(has_begun(part) for part in parts):
        raise Conflict("erasure_begun", "What is known of the person is being deleted already.")
    decide(session, erasure, EventKind.REFUSED, by)
    move(erasure, REFUSED)
    for part in parts:
        move(part, REFUSED)
    erasure.refusal, erasure.completed_at = reason, now()
    erasure.subject = erasure.reason = None


def has_begun(part: Part) -> bool:
    """Whether anything of the person is, or may be, deleted."""
    return part.state in (PURGING, COMPLETED) or report.read(part).deleted is not None


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """The due date moves by two months, once, and within the first month (GDPR Art. 12(3))."""
    if erasure.state in PENDING and erasure.extension is not None:
        raise Conflict("erasure_extended", "The due date was moved already; the law allows that once.")
    if erasure.state in PENDING and now() > months_after(erasure.received_at, 1):
        raise Conflict("erasure_late", "The first month is over: the person had to be told of an extension within it.")
    decide(session, erasure, EventKind.EXTENDED, by)
    erasure.extension, erasure.due_at = reason, months_after(erasure.received_at, 3)
    erasure.warned_at = None


def warn_of_due(database: Database) -> int:
    """Tell webhooks, once, of each open request that is due in a few days; how many."""
    with database.write() as session:
        soon = (Erasure.state.in_(PENDING), Erasure.due_at <= now() + WARN_BEFORE_DUE, Erasure.warned_at.is_(None))
        found = session.scalars(select(Erasure).where(*soon).with_for_update(skip_locked=True)).all()
        for erasure in found:
            erasure.warned_at = now()
            due_at, event = utc_text(erasure.due_at), WebhookEvent.ERASURE_DUE_SOON
            emit(session, event, erasure=erasure.id, state=erasure.state.value, due_at=due_at)
        return len(found)


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """What failed is tried again; the failed parts follow by `receive_part`."""
    decide(session, erasure, EventKind.RETRIED, by)


def advance(session: Session, model_id: int, state: ErasureState) -> None:
    """A model's job has reached a step of its erasures; with hundreds of them, in two statements.

    An erasure of several models stands where the one is that is furthest behind.
    """
    ids = [erasure.id for _, erasure in open_parts(session, model_id)]
    parts = update(Part).where(Part.model_id == model_id, Part.state.in_(OPEN))
    earlier = [FAILED, *(step for step in OPEN if list(ErasureState).index(step) < list(ErasureState).index(state))]
    behind = exists().where(Part.erasure_id == Erasure.id, Part.model_id != model_id, Part.state.in_(earlier))
    for some in batched(ids):
        session.execute(parts.where(Part.erasure_id.in_(some)).values(state=state, error=None))
        still_open = (Erasure.id.in_(some), Erasure.state.in_(OPEN), ~behind)
        session.execute(update(Erasure).where(*still_open).values(state=state))


def begin_purge(part: Part) -> None:
    """The model was deleted: it is only looked whether all of it is gone."""
    move(part, PURGING)
    part.error = None


def fail(session: Session, model_id: int, error: JobError) -> None:
    """The job that was to carry out a model's erasures has failed for good."""
    for part, erasure in open_parts(session, model_id):
        move(part, FAILED)
        part.error = error
        conclude(session, erasure)


def complete_part(session: Session, part: Part, erasure: Erasure) -> None:
    """A model has forgotten the person; of the last one the receipt is written."""
    move(part, COMPLETED)
    conclude(session, erasure)


def conclude(session: Session, erasure: Erasure) -> None:
    """Let the erasure say where its models are; it is completed when all have forgotten the person."""
    session.flush()
    # one at a time, after the models' locks: of two that end together, the second sees both
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in OPEN:
        return
    parts = parts_of(session, erasure)
    states = [part.state for part in parts]
    if all(state is COMPLETED for state in states):
        complete(session, erasure, parts)
    elif FAILED in states:
        move(erasure, FAILED)
    else:  # the one that is furthest behind
        move(erasure, min((s for s in states if s is not COMPLETED), key=list(ErasureState).index))


def complete(session: Session, erasure: Erasure, parts: Sequence[Part]) -> None:
    """Write the receipt, and forget who the person was."""
    erasure.completed_at = now()
    receipt = receipts.append(session, erasure.id, report_json(report_of(session, erasure, parts)))
    move(erasure, COMPLETED)
    erasure.receipt = receipt.number
    emit(session, WebhookEvent.ERASURE_COMPLETED, erasure=erasure.id, late=erasure.late)
    erasure.subject = erasure.reason = erasure.extension = None


def report_of(session: Session, erasure: Erasure, parts: Sequence[Part]) -> ErasureReport:
    """What was done for a person, from what each model's job has noted."""
    assert erasure.completed_at is not None
    models = [report.read(part) for part in parts]
    return ErasureReport(
        subject_token=erasure.token,
        received_at=utc_text(erasure.received_at),
        due_at=utc_text(erasure.due_at),
        extended=erasure.extension is not None,
        late=erasure.late,
        completed_at=utc_text(erasure.completed_at),
        trail=[TrailEntry(event.kind.value, event.by, utc_text(event.at)) for event in events_of(session, erasure)],
        found=sum(model.examples for model in models),
        statement=write_statement(models),
        models=models,
    )
