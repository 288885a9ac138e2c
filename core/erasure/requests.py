"""Receiving erasures: find what is there of a person in all models, restrict it at once, and have it forgotten."""

from __future__ import annotations

import calendar
import hmac
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import inserting, now
from core.erasure import receipts
from core.erasure.tables import OPEN, Erasure, ErasureState, Part
from core.errors import Conflict, NotFound
from core.jobs import queue
from core.jobs.tables import JobKind
from core.ledger import append
from core.ledger.tables import Example
from core.models.table import Model
from core.versions.tables import Version

BEGUN = (ErasureState.PURGING, ErasureState.COMPLETED)


def months_after(moment: datetime, months: int) -> datetime:
    """The same day and time so many months later; the last day of a shorter month.

    >>> months_after(datetime(2026, 1, 31), 1)
    datetime.datetime(2026, 2, 28, 0, 0)
    """
    years, month = divmod(moment.month - 1 + months, 12)
    year = moment.year + years
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def token_of(subject: bytes, secret: bytes) -> str:
    """What receipts carry in place of the person."""
    return hmac.digest(secret, b"receipt:" + subject, "sha256").hex()


def receive(
    session: Session,
    subject: bytes,
    secret: bytes,
    asked_by: str,
    reason: str | None = None,
    received_at: datetime | None = None,
    request_id: str | None = None,
) -> Erasure:
    """Begin an erasure, or join the one that is open for the same person: what came since is taken in."""
    open_one = select(Erasure).where(Erasure.subject == subject, Erasure.state.in_(OPEN))
    erasure = session.scalar(open_one)
    if erasure is None:
        since = received_at or now()
        values = {
            "id": str(uuid.uuid4()),
            "subject": subject,
            "token": token_of(subject, secret),
            "reason": reason,
            "asked_by": asked_by,
            "request_id": request_id,
            "received_at": since,
            "due_at": months_after(since, 1),
        }
        # somebody else may just have begun it; as an error it would be in PostgreSQL's log, with the hash
        session.execute(inserting(session, Erasure).values(values).on_conflict_do_nothing())
        erasure = session.scalars(open_one).one()
    elif received_at is not None and received_at < erasure.received_at:
        erasure.received_at = received_at
        erasure.due_at = months_after(received_at, 3 if erasure.extension else 1)
    resolve(session, erasure)
    return erasure


def resolve(session: Session, erasure: Erasure) -> None:
    """Snapshot what is there of the person in each model, take it out of force, and make the jobs due."""
    holding = select(Example.model_id).where(Example.subject == erasure.subject).distinct()
    for model_id in sorted(session.scalars(holding)):
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:
            continue
        about = (Example.model_id == model_id, Example.subject == erasure.subject)
        if session.scalar(select(Example.position).where(*about, Example.removed.is_(None)).limit(1)) is not None:
            append.remove(session, model, Example.subject, [""], [erasure.subject])
        positions = sorted(session.scalars(select(Example.position).where(*about)))
        part = session.get(Part, (erasure.id, model_id))
        if part is None:
            part = Part(erasure_id=erasure.id, model_id=model_id, model=model.name, positions=[])
            session.add(part)
        if set(positions) - set(part.positions) or part.state is ErasureState.FAILED:
            part.positions = sorted({*part.positions, *positions})  # some may be deleted by now
            part.examples, part.first, part.removed = len(part.positions), part.positions[0], model.head
            part.state, part.error = ErasureState.RECEIVED, None
        session.flush()
        queue.due(session, model, JobKind.ERASE, erasure.request_id)
    conclude(session, erasure)


def find(session: Session, id: str) -> Erasure:
    erasure = session.get(Erasure, id) if id.isprintable() else None
    if erasure is None:
        raise NotFound("erasure_not_found", "There is no such erasure.")
    return erasure


def parts_of(session: Session, erasure: Erasure) -> list[Part]:
    parts = select(Part).where(Part.erasure_id == erasure.id).order_by(Part.model)
    return list(session.scalars(parts.execution_options(populate_existing=True)))


def retry(session: Session, erasure: Erasure) -> None:
    """Try again what failed."""
    if erasure.state is not ErasureState.FAILED:
        raise Conflict("erasure_not_failed", f"The erasure has not failed: it is {erasure.state}.")
    resolve(session, erasure)
    for part in parts_of(session, erasure):
        model = session.get(Model, part.model_id, with_for_update=True)
        if part.state is ErasureState.FAILED and model is not None:
            part.state, part.error = ErasureState.RECEIVED, None
            session.flush()
            queue.due(session, model, JobKind.ERASE, erasure.request_id)
    conclude(session, erasure)


def refuse(session: Session, erasure: Erasure, reason: str) -> None:
    """Refuse a request (GDPR Art. 12(5), 17(3)). What was taken out of force stays out, and is kept."""
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in OPEN:
        raise Conflict("erasure_ended", f"The erasure has ended already: {erasure.state}.")
    if any(part.state in BEGUN or "deleted" in (part.figures or {}) for part in parts_of(session, erasure)):
        raise Conflict("erasure_begun", "What is known of the person is being deleted already.")
    erasure.state, erasure.refusal, erasure.completed_at = ErasureState.REFUSED, reason, now()
    erasure.subject = erasure.reason = None
    for part in parts_of(session, erasure):
        part.state = ErasureState.REFUSED


def extend(session: Session, erasure: Erasure, reason: str) -> None:
    """Move the due date by two months, once (GDPR Art. 12(3))."""
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in OPEN:
        raise Conflict("erasure_ended", f"The erasure has ended already: {erasure.state}.")
    if erasure.extension is not None:
        raise Conflict("erasure_extended", "The due date was moved already; the law allows that once.")
    erasure.extension, erasure.due_at = reason, months_after(erasure.received_at, 3)


def note_deletion(session: Session, model: Model) -> None:
    """A model is about to be deleted, and with it all that it knew; `deleting.complete` looks whether that is so."""
    published = select(Version.number).where(Version.model_id == model.id, Version.mlflow.is_not(None))
    in_mlflow = session.scalar(published.limit(1)) is not None
    for part, erasure in open_parts(session, model.id):
        part.state, part.error = ErasureState.PURGING, None
        words = "the model was deleted, with everything it knew"
        part.figures = {"method": "deleted", "words": words, "in_mlflow": in_mlflow}
        conclude(session, erasure)


def open_parts(session: Session, model_id: int) -> list[tuple[Part, Erasure]]:
    """What is still to be done for a model, the oldest first."""
    query = select(Part, Erasure).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.model_id == model_id, Part.state.in_(OPEN), Erasure.state.in_(OPEN))
    return [(part, erasure) for part, erasure in session.execute(query.order_by(Erasure.created_at, Erasure.id))]


def note_failure(session: Session, model: Model, error: dict[str, str]) -> None:
    """The job that was to carry out a model's erasures has failed for good."""
    for part, erasure in open_parts(session, model.id):
        part.state, part.error = ErasureState.FAILED, error
        conclude(session, erasure)


def conclude(session: Session, erasure: Erasure) -> None:
    """Let the erasure say where its models are; write the receipt when all have forgotten the person."""
    session.flush()
    # one at a time, after the models' locks: of two that end together, the second sees both
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in OPEN:
        return
    states = [part.state for part in parts_of(session, erasure)]
    if all(state is ErasureState.COMPLETED for state in states):
        complete(session, erasure)
    elif ErasureState.FAILED in states:
        erasure.state = ErasureState.FAILED
    else:  # the one that is furthest behind
        erasure.state = min((s for s in states if s is not ErasureState.COMPLETED), key=list(ErasureState).index)


def complete(session: Session, erasure: Erasure) -> None:
    erasure.completed_at = now()
    receipt = receipts.append(session, erasure.id, told(session, erasure))
    erasure.state, erasure.receipt = ErasureState.COMPLETED, receipt.number
    erasure.subject = erasure.reason = erasure.extension = None


def told(session: Session, erasure: Erasure) -> dict[str, object]:
    """What a receipt says, without a word about who the person is."""
    parts = parts_of(session, erasure)
    assert erasure.completed_at is not None
    return {
        "subject_token": erasure.token,
        "received_at": erasure.received_at.isoformat(),
        "due_at": erasure.due_at.isoformat(),
        "extended": erasure.extension is not None,
        "late": erasure.completed_at > erasure.due_at,
        "completed_at": erasure.completed_at.isoformat(),
        "found": sum(part.examples for part in parts),
        "statement": statement(parts),
        "models": [{"model": part.model, "examples": part.examples, **(part.figures or {})} for part in parts],
    }


def statement(parts: list[Part]) -> str:
    """The whole in a sentence."""
    if not parts:
        return "No model holds or has learnt from any example about this person."
    count = sum(part.examples for part in parts)
    examples, their = ("1 example", "its") if count == 1 else (f"{count} examples", "their")
    models = "1 model" if len(parts) == 1 else f"{len(parts)} models"
    were = "was" if count == 1 else "were"
    said = f"{examples} about this person {were} forgotten by {models} and deleted; {their} absence was verified."
    if unbounded := sum(without_bound(part.figures or {}) for part in parts):
        networks = (
            "1 of them is a network that was" if unbounded == 1 else f"{unbounded} of them are networks that were"
        )
        said += f" {networks} adapted: what is left there is measured, not bounded."
    if until := max((part.figures or {}).get("kept_until") or "" for part in parts):
        said += f" Versions that knew the person are kept, out of use, until {until[:10]}."
    return said


def without_bound(figures: dict[str, Any]) -> bool:
    """Whether a model was adapted without a bound on how near it is to a retrain."""
    return figures.get("method") == "adapted" and (figures.get("certificate") or {}).get("kind") != "bound"


def take_in(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """Take in what came about people while their erasures were open; the ids of those erasures.

    A caller's pipeline may not have heard of the request yet.
    """
    late: set[str] = set()
    by_subject = {erasure.subject: erasure for erasure in erasures if erasure.subject is not None}
    for some in append.few(list(by_subject)):
        in_force = (Example.subject.in_(some), Example.removed.is_(None))
        for subject in session.scalars(select(Example.subject).where(*in_force).distinct()).all():
            erasure = by_subject[subject or b""]
            resolve(session, erasure)
            late.add(erasure.id)
    return late
