"""Changes of the state of erasures. Nothing else changes the state of an erasure, or of its part in a model.

Each function is one transition (`state_machine.py`), with its record in the register and its times; the caller's
transaction holds the locks.
"""

import hashlib
from collections.abc import Sequence

from sqlalchemy import case, exists, literal, select, update
from sqlalchemy.orm import Session

from core import suppressions
from core.clock import now
from core.database import Database, utc_text
from core.erasure import identifiers, receipt_content, receipts
from core.erasure.due_dates import due_date, may_extend
from core.erasure.queries import WARN_BEFORE_DUE, parts_of
from core.erasure.request_details import RequestDetails
from core.erasure.state_machine import (
    ADAPTING,
    COMPLETED,
    FAILED,
    HELD,
    JOB_STEPS,
    LIFTED,
    PURGING,
    RECEIVED,
    REFUSED,
    RESTRICTED,
    UNMATCHED,
    VERIFYING,
    WITHDRAWN,
    derive,
    move,
)
from core.errors import Conflict
from core.ledger import journal
from core.ledger.queries import batched
from core.register import log, signed_tree
from core.register.records import SYSTEM
from core.settings import Settings
from core.tables.documents import JobError
from core.tables.erasures import OPEN, PENDING, WAITING, Erasure, ErasureState, Part
from core.tables.models import Model
from core.tables.register import RecordKind
from core.tables.webhooks import WebhookEvent
from core.versions.erased_examples import open_parts
from core.webhooks.events import emit

DECISIONS: dict[RecordKind, tuple[Sequence[ErasureState], str, str]] = {
    RecordKind.APPROVED: (
        (HELD, UNMATCHED),
        "erasure_not_held",
        "The erasure is {}. Only a held or unmatched erasure can be approved.",
    ),
    RecordKind.HELD: (OPEN, "erasure_not_open", "The erasure is {}. Only an erasure in progress can be held."),
    RecordKind.REFUSED: (PENDING, "erasure_ended", "The erasure has already ended: it is {}."),
    RecordKind.WITHDRAWN: (PENDING, "erasure_ended", "The erasure has already ended: it is {}."),
    RecordKind.LIFTED: ((RESTRICTED,), "restriction_ended", "The restriction has already ended: it is {}."),
    RecordKind.EXTENDED: (PENDING, "erasure_ended", "The erasure has already ended: it is {}."),
    RecordKind.RETRIED: ((FAILED,), "erasure_not_failed", "The erasure has not failed: it is {}."),
}
"""For each decision: the states in which it can be made, and the error code and message in all other states."""


def first_state(session: Session, filing: RequestDetails) -> ErasureState:
    """The state of a new request, before the person's examples are searched for."""
    return HELD if filing.hold or needs_second_person(session) else UNMATCHED


def needs_second_person(session: Session) -> bool:
    """Whether somebody else must approve each request (AMEND_ERASURE_APPROVAL)."""
    settings: Settings = session.info["settings"]
    return settings.erasure_approval == "second"


def filers_of(session: Session, erasure: Erasure) -> set[str]:
    """Ids of the keys that filed the identifiers of a request that nobody has approved yet."""
    filers, known = set[str](), set[str]()
    for record in log.records_of(session, erasure.id):
        if record["kind"] == RecordKind.FILED:
            tokens = {record["subject_token"], *record.get("alias_tokens", [])}
            filers |= set() if tokens <= known else {record["actor"]["id"]}
            known |= tokens
        elif record["kind"] == RecordKind.APPROVED:
            filers = set()
    return filers


def record_decision(session: Session, erasure: Erasure, kind: RecordKind, by: str, **fields: str | bool | None) -> None:
    """Record a decision in the register; raises Conflict if it cannot be made in this state."""
    states, code, message = DECISIONS[kind]
    if erasure.state not in states:
        raise Conflict(code, message.format(erasure.state))
    log.record(session, kind, by, erasure.id, **fields)


def initial_state(erasure: Erasure) -> ErasureState:
    """The state of a part whose examples were found just now."""
    return erasure.state if erasure.state in WAITING else RECEIVED


def begin_part(session: Session, erasure: Erasure, model: Model) -> Part:
    """Create the part for a model in which no examples of the person were found before."""
    state = initial_state(erasure)
    part = Part(erasure_id=erasure.id, model_id=model.id, model=model.name, state=state, positions=[], restricted=[])
    session.add(part)
    return part


def receive_part(part: Part, state: ErasureState = RECEIVED) -> None:
    """Record that a model has examples of the person; the state is that of `initial_state`."""
    move(part, state)
    part.error = None


def match(session: Session, erasure: Erasure) -> None:
    """Record that a model has examples of the person of a request for whom none had been found."""
    if erasure.state is UNMATCHED and needs_second_person(session):  # it was filed before the setting was made
        log.record(session, RecordKind.HELD, SYSTEM, erasure.id)
        move(erasure, HELD)
    elif erasure.state is UNMATCHED:
        move(erasure, RECEIVED)


def approve(session: Session, erasure: Erasure, by: str) -> None:
    """Approve a request that is held or unmatched; the caller moves its parts with `receive_part` and `begin_purge`."""
    record_decision(session, erasure, RecordKind.APPROVED, by)
    move(erasure, RECEIVED)
    journal.update_request(session, erasure.id)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Refuse a request with all its parts; raises Conflict if anything was deleted already."""
    require_nothing_deleted(session, erasure, "refused")
    require_no_receipt(session, erasure, "refused")
    record_decision(session, erasure, RecordKind.REFUSED, by, reason=reason)
    erasure.refusal = reason
    end(session, erasure, REFUSED)


def withdraw(session: Session, erasure: Erasure, by: str) -> None:
    """End a request that the person has withdrawn; raises Conflict if anything was deleted already."""
    require_nothing_deleted(session, erasure, "withdrawn")
    require_no_receipt(session, erasure, "withdrawn")
    record_decision(session, erasure, RecordKind.WITHDRAWN, by)
    end(session, erasure, WITHDRAWN)


def hold(session: Session, erasure: Erasure, by: str) -> None:
    """Hold an open request until it is approved, refused or withdrawn; its jobs leave it out."""
    require_nothing_deleted(session, erasure, "held")
    record_decision(session, erasure, RecordKind.HELD, by)
    move(erasure, HELD)
    for part in parts_of(session, erasure):
        receive_part(part, HELD)
    journal.update_request(session, erasure.id)


def hold_again(session: Session, erasure: Erasure, by: str) -> None:
    """Hold a request in progress that has changed since it was approved."""
    if erasure.state in OPEN:
        hold(session, erasure, by)


def lift(session: Session, erasure: Erasure, reason: str | None, by: str) -> None:
    """End a restriction. The reason is on the letter, and deleted from the register with its record."""
    record_decision(session, erasure, RecordKind.LIFTED, by, reason=reason)
    end(session, erasure, LIFTED)


def end(session: Session, erasure: Erasure, state: ErasureState) -> None:
    """End a request without an erasure, and delete what identifies the person."""
    move(erasure, state)
    for part in parts_of(session, erasure):
        move(part, state)
    erasure.completed_at, erasure.reason, erasure.extension = now(), None, None
    identifiers.forget_subjects(session, erasure)
    journal.update_request(session, erasure.id)


def require_nothing_deleted(session: Session, erasure: Erasure, decided: str) -> None:
    if erasure.state in PENDING and any(has_begun(part) for part in parts_of(session, erasure)):
        message = f"The erasure cannot be {decided}: data of the person is already being deleted."
        raise Conflict("erasure_begun", message)


def require_no_receipt(session: Session, erasure: Erasure, decided: str) -> None:
    """Raise Conflict if the request repeats, after a restore, an erasure that a receipt has confirmed: its examples
    must not return."""
    repeats = any(record["kind"] == RecordKind.REPLAYED for record in log.records_of(session, erasure.id))
    if erasure.state in PENDING and (repeats or erasure.repeats is not None):
        message = f"The erasure cannot be {decided}: it repeats an erasure that was completed before a restore."
        raise Conflict("erasure_begun", message)


def has_begun(part: Part) -> bool:
    """Whether any data of the person was, or may have been, deleted; analyses can be repeated."""
    deleted = receipt_content.read(part).deleted
    return part.state in (PURGING, COMPLETED) or (deleted is not None and deleted.examples is not None)


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Extend the due date by two months; possible once, within the first month (GDPR Art. 12(3))."""
    if erasure.state in PENDING and erasure.extension is not None:
        raise Conflict("erasure_extended", "The due date was already extended. The law allows that only once.")
    if erasure.state in PENDING and not may_extend(erasure.received_at, now()):
        raise Conflict("erasure_late", "The first month is over. The law allows an extension only within it.")
    due_at = due_date(erasure.received_at, extended=True)
    # only a hash: the reason is deleted when the erasure ends
    hashed = hashlib.sha256(reason.encode()).hexdigest()
    record_decision(session, erasure, RecordKind.EXTENDED, by, due_at=utc_text(due_at), reason_sha256=hashed)
    erasure.extension, erasure.due_at = reason, due_at
    erasure.warned_at = None
    journal.update_request(session, erasure.id)


def warn_of_due(database: Database) -> int:
    """Notify webhooks, once each, of open requests that are due soon; returns how many."""
    with database.write() as session:
        soon = (Erasure.state.in_(PENDING), Erasure.due_at <= now() + WARN_BEFORE_DUE, Erasure.warned_at.is_(None))
        found = session.scalars(select(Erasure).where(*soon).with_for_update(skip_locked=True)).all()
        for erasure in found:
            erasure.warned_at = now()
            due_at, event = utc_text(erasure.due_at), WebhookEvent.ERASURE_DUE_SOON
            state, head = erasure.state.value, dict(signed_tree.current_head(session))
            emit(session, event, erasure=erasure.id, state=state, due_at=due_at, receipt=None, sha256=None, head=head)
        return len(found)


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """Retry a failed request; the caller moves the failed parts with `receive_part`."""
    record_decision(session, erasure, RecordKind.RETRIED, by)


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


def complete(session: Session, erasure: Erasure, parts: Sequence[Part]) -> None:
    """Write the receipt, and delete what identifies the person."""
    erasure.completed_at = now()
    recognised_until, suppressed = None, list[str]()
    for subject in identifiers.subjects_of(session, erasure):
        recognised_until = suppressions.suppress(session, subject)
        suppressed.append(suppressions.hash_of(subject, session.info["settings"].secret))
    journal.update_request(session, erasure.id, suppressed, recognised_until)
    move(erasure, COMPLETED)
    end_restrictions(session, identifiers.subjects_of(session, erasure))
    receipts.issue(session, erasure, receipts.report_of(session, erasure, parts, recognised_until))
    erasure.reason = erasure.extension = None
    identifiers.forget_subjects(session, erasure)


def end_restrictions(session: Session, subjects: Sequence[bytes]) -> None:
    """End the restrictions of a person whose data was erased."""
    for restriction in identifiers.others_of(session, subjects):
        if restriction.state is RESTRICTED:
            for part in parts_of(session, restriction):
                part.restricted = []
            lift(session, restriction, "the data was erased", SYSTEM)
