"""The state machine of erasures. Nothing else changes the state of an erasure, or of its part in a model.

A part follows `TRANSITIONS`:

    held -> received -> adapting -> verifying -> purging -> completed

- A job that is repeated starts again at `adapting`, also with parts that failed.
- New examples of the person put a part back to `received`, even a completed one if another model is not done yet.
- A part fails if its job fails for good. Retrying it leads back to `received`.
- If its model is deleted, a part goes to `purging` at once.
- A request can be refused until its first part reaches `purging`.

The erasure as a whole shows the state of the part that is furthest behind, or `failed` if any part failed. Each
function is one transition, with its entry in the trail and its times; the caller's transaction holds the locks.
"""

import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, exists, literal, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, dialect_insert, utc_text
from core.erasure import receipts, report
from core.erasure.due_dates import due_date, may_extend
from core.erasure.queries import events_of, find_open, last_event, parts_of
from core.erasure.receipt_text import write_statement
from core.erasure.report import ErasureReport, TrailEntry, report_json
from core.errors import Conflict
from core.ledger.queries import batched
from core.tables.documents import JobError
from core.tables.erasures import OPEN, PENDING, Erasure, ErasureState, Event, EventKind, Part
from core.tables.models import Model
from core.tables.webhooks import WebhookEvent
from core.versions.erased_examples import open_parts
from core.webhooks.events import emit

WARN_BEFORE_DUE = timedelta(days=7)
"""How long before the due date webhooks are warned of an open request."""
HELD, RECEIVED, ADAPTING = ErasureState.HELD, ErasureState.RECEIVED, ErasureState.ADAPTING
VERIFYING, PURGING = ErasureState.VERIFYING, ErasureState.PURGING
COMPLETED, FAILED, REFUSED = ErasureState.COMPLETED, ErasureState.FAILED, ErasureState.REFUSED

TRANSITIONS: dict[ErasureState, frozenset[ErasureState]] = {
    HELD: frozenset({RECEIVED, REFUSED}),
    RECEIVED: frozenset({ADAPTING, PURGING, FAILED, REFUSED}),
    ADAPTING: frozenset({RECEIVED, VERIFYING, PURGING, FAILED, REFUSED}),
    VERIFYING: frozenset({RECEIVED, ADAPTING, PURGING, FAILED, REFUSED}),
    PURGING: frozenset({RECEIVED, ADAPTING, COMPLETED, FAILED}),
    FAILED: frozenset({RECEIVED, ADAPTING, PURGING, REFUSED}),
    COMPLETED: frozenset({RECEIVED}),
    REFUSED: frozenset(),
}
"""The states that a part may go to from each state."""
JOB_STEPS: dict[ErasureState, tuple[ErasureState, ...]] = {
    ADAPTING: (RECEIVED, VERIFYING, PURGING, FAILED),
    VERIFYING: (ADAPTING,),
    PURGING: (VERIFYING,),
}
"""For each step of a job: the states from which it takes parts along. Parts that were received since wait for the next
job."""
ERASURE_TRANSITIONS: dict[ErasureState, frozenset[ErasureState]] = {
    HELD: frozenset({RECEIVED, REFUSED}),
    **{state: frozenset({*OPEN, REFUSED} - {state}) for state in OPEN},
    RECEIVED: frozenset({*OPEN, COMPLETED, REFUSED} - {RECEIVED}),  # completed at once if nothing is found
    PURGING: frozenset({*OPEN, COMPLETED} - {PURGING}),
    COMPLETED: frozenset(),
    REFUSED: frozenset(),
}
"""The states that an erasure may go to: as it shows the part furthest behind, it may skip states of single parts."""
DECISIONS: dict[EventKind, tuple[Sequence[ErasureState], str, str]] = {
    EventKind.APPROVED: ((HELD,), "erasure_not_held", "The erasure is {}. Only a held erasure can be approved."),
    EventKind.REFUSED: (PENDING, "erasure_ended", "The erasure has already ended: it is {}."),
    EventKind.EXTENDED: (PENDING, "erasure_ended", "The erasure has already ended: it is {}."),
    EventKind.RETRIED: ((FAILED,), "erasure_not_failed", "The erasure has not failed: it is {}."),
}
"""For each decision: the states in which it can be made, and the error code and message in all other states."""


@dataclass(frozen=True)
class RequestDetails:
    """A person's request."""

    subject: bytes
    reason: str | None = None
    received_at: datetime | None = None
    hold: bool = False


def token_of(subject: bytes, secret: bytes) -> str:
    """The token that identifies the person on receipts."""
    return hmac.digest(secret, b"receipt:" + subject, "sha256").hex()


def move(row: Erasure | Part, state: ErasureState) -> None:
    """Change the state of an erasure, or of its part in a model. Staying in a state is no transition."""
    allowed = TRANSITIONS if isinstance(row, Part) else ERASURE_TRANSITIONS
    if state is not row.state and state not in allowed[row.state]:
        raise ValueError(f"{type(row).__name__} that is {row.state} cannot become {state}.")
    row.state = state


def record_event(session: Session, erasure: Erasure, kind: EventKind, by: str) -> None:
    """Add an action to the trail, in the transaction that performs it; `by` is the id of the API key."""
    session.add(Event(erasure_id=erasure.id, kind=kind, by=by))
    session.flush()


def record_decision(session: Session, erasure: Erasure, kind: EventKind, by: str) -> None:
    """Add a decision to the trail; raises Conflict if it cannot be made in this state."""
    states, code, message = DECISIONS[kind]
    if erasure.state not in states:
        raise Conflict(code, message.format(erasure.state))
    record_event(session, erasure, kind, by)


def file(session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None) -> Erasure:
    """File a request, or return the open one of the same person; a held request stays held."""
    erasure = find_open(session, filing.subject)
    begun = erasure is None
    if erasure is None:
        since = filing.received_at or now()
        values = {
            "id": str(uuid.uuid4()),
            "subject": filing.subject,
            "token": token_of(filing.subject, secret),
            "reason": filing.reason,
            "requested_by": by,
            "request_id": request_id,
            "received_at": since,
            "due_at": due_date(since),
            "state": HELD if filing.hold else RECEIVED,
        }
        # another transaction may have filed it just now; an error would put the hash into PostgreSQL's log
        session.execute(dialect_insert(session, Erasure).values(values).on_conflict_do_nothing())
        erasure = find_open(session, filing.subject)
        assert erasure is not None
    elif filing.received_at is not None and filing.received_at < erasure.received_at:
        erasure.received_at = filing.received_at
        extended_at = last_event(session, erasure, EventKind.EXTENDED)
        # an extension counts if it was made within the first month, which now begins earlier
        in_time = extended_at is not None and may_extend(filing.received_at, extended_at)
        erasure.due_at = due_date(filing.received_at, extended=in_time)
    record_event(session, erasure, EventKind.FILED, by)
    if begun and erasure.state is HELD:
        record_event(session, erasure, EventKind.HELD, by)
    return erasure


def begin_part(session: Session, erasure: Erasure, model: Model) -> Part:
    """Create the part for a model in which no examples of the person were found before."""
    state = HELD if erasure.state is HELD else RECEIVED
    part = Part(erasure_id=erasure.id, model_id=model.id, model=model.name, state=state, positions=[], restricted=[])
    session.add(part)
    return part


def receive_part(part: Part, held: bool = False) -> None:
    """Record that a model has examples of the person to be forgotten; of a held request, once it is approved."""
    move(part, HELD if held else RECEIVED)
    part.error = None


def approve(session: Session, erasure: Erasure, by: str) -> None:
    """Approve a held request; the caller moves its parts with `receive_part` and `begin_purge`."""
    record_decision(session, erasure, EventKind.APPROVED, by)
    move(erasure, RECEIVED)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Refuse a request with all its parts; raises Conflict if anything was deleted already."""
    parts = parts_of(session, erasure)
    if erasure.state in PENDING and any(has_begun(part) for part in parts):
        raise Conflict("erasure_begun", "The erasure cannot be refused: data of the person is already being deleted.")
    record_decision(session, erasure, EventKind.REFUSED, by)
    move(erasure, REFUSED)
    for part in parts:
        move(part, REFUSED)
    erasure.refusal, erasure.completed_at = reason, now()
    erasure.subject = erasure.reason = None


def has_begun(part: Part) -> bool:
    """Whether any data of the person was, or may have been, deleted."""
    return part.state in (PURGING, COMPLETED) or report.read(part).deleted is not None


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Extend the due date by two months; possible once, within the first month (GDPR Art. 12(3))."""
    if erasure.state in PENDING and erasure.extension is not None:
        raise Conflict("erasure_extended", "The due date was already extended. The law allows that only once.")
    if erasure.state in PENDING and not may_extend(erasure.received_at, now()):
        raise Conflict("erasure_late", "The first month is over. The law allows an extension only within it.")
    record_decision(session, erasure, EventKind.EXTENDED, by)
    erasure.extension, erasure.due_at = reason, due_date(erasure.received_at, extended=True)
    erasure.warned_at = None


def warn_of_due(database: Database) -> int:
    """Notify webhooks, once each, of open requests that are due soon; returns how many."""
    with database.write() as session:
        soon = (Erasure.state.in_(PENDING), Erasure.due_at <= now() + WARN_BEFORE_DUE, Erasure.warned_at.is_(None))
        found = session.scalars(select(Erasure).where(*soon).with_for_update(skip_locked=True)).all()
        for erasure in found:
            erasure.warned_at = now()
            due_at, event = utc_text(erasure.due_at), WebhookEvent.ERASURE_DUE_SOON
            emit(session, event, erasure=erasure.id, state=erasure.state.value, due_at=due_at)
        return len(found)


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """Retry a failed request; the caller moves the failed parts with `receive_part`."""
    record_decision(session, erasure, EventKind.RETRIED, by)


def advance(session: Session, model_id: int, state: ErasureState) -> None:
    """Move the open parts of a model to a step of its job, in bulk: there may be hundreds. Their erasures follow."""
    ids = [erasure.id for _, erasure in open_parts(session, model_id)]
    parts = update(Part).where(Part.model_id == model_id, Part.state.in_(JOB_STEPS[state]))
    erasures = update(Erasure).where(Erasure.state.in_(OPEN))
    part_of = exists().where(Part.erasure_id == Erasure.id)
    # `derive` in SQL: the first of these states that a part is in
    order = (FAILED, RECEIVED, ADAPTING, VERIFYING, PURGING)
    derived = case(*((part_of.where(Part.state == step), literal(step, Erasure.state.type)) for step in order))
    for batch in batched(ids):
        session.execute(parts.where(Part.erasure_id.in_(batch)).values(state=state, error=None))
        session.execute(erasures.where(Erasure.id.in_(batch)).values(state=derived))


def begin_purge(part: Part) -> None:
    """Record that the model was deleted, so that all that remains is to verify that its data is gone."""
    move(part, PURGING)
    part.error = None


def fail(session: Session, model_id: int, error: JobError) -> None:
    """Record that the job of a model's erasures has failed for good."""
    for part, erasure in open_parts(session, model_id):
        move(part, FAILED)
        part.error = error
        conclude(session, erasure)


def complete_part(session: Session, part: Part, erasure: Erasure) -> None:
    """Complete the part of a model; completing the last part writes the receipt."""
    move(part, COMPLETED)
    conclude(session, erasure)


def conclude(session: Session, erasure: Erasure) -> None:
    """Derive the state of an erasure from its parts; it is completed when all of them are."""
    session.flush()
    # locked after the models: if two parts end at the same time, the second transaction sees both
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in OPEN:
        return
    parts = parts_of(session, erasure)
    state = derive([part.state for part in parts])
    if state is COMPLETED:
        complete(session, erasure, parts)
    else:
        move(erasure, state)


def derive(parts: Sequence[ErasureState]) -> ErasureState:
    """The state of an erasure: failed if a part is, otherwise that of the part furthest behind."""
    return FAILED if FAILED in parts else min(parts, key=list(ErasureState).index, default=COMPLETED)


def complete(session: Session, erasure: Erasure, parts: Sequence[Part]) -> None:
    """Write the receipt, and delete what identifies the person."""
    erasure.completed_at = now()
    receipt = receipts.append(session, erasure.id, report_json(report_of(session, erasure, parts)))
    move(erasure, COMPLETED)
    erasure.receipt = receipt.number
    emit(session, WebhookEvent.ERASURE_COMPLETED, erasure=erasure.id, late=erasure.late)
    erasure.subject = erasure.reason = erasure.extension = None


def report_of(session: Session, erasure: Erasure, parts: Sequence[Part]) -> ErasureReport:
    """The report on an erasure, assembled from the reports of its parts."""
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
