"""Receiving erasures: find what is there of a person in all models, restrict it at once, and have it forgotten."""

from __future__ import annotations

import calendar
import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from core import ledger
from core.database import Database, inserting, now
from core.erasure import receipts, trail
from core.erasure.statement import told
from core.errors import Conflict, NotFound
from core.jobs import queue
from core.ledger.queries import batched
from core.tables.erasures import OPEN, PENDING, Erasure, ErasureState, EventKind, Part
from core.tables.jobs import JobKind
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.versions import Version


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
    hold: bool = False,
) -> Erasure:
    """Begin an erasure, or join the one that is open for the same person: what came since is taken in."""
    erasure = file(session, subject, secret, asked_by, reason, received_at, request_id, hold)
    resolve(session, erasure)
    return erasure


@dataclass(frozen=True)
class Filing:
    """What is said of one person's request."""

    subject: bytes
    reason: str | None
    received_at: datetime | None
    hold: bool


def receive_all(
    session: Session, filings: Sequence[Filing], secret: bytes, asked_by: str, request_id: str | None
) -> list[Erasure]:
    """Begin many erasures, one for each person, in the order of the filings.

    What is locked is locked in one order, whoever files the same people: first the requests, then their models.
    """
    made: dict[int, Erasure] = {}
    for i, filing in sorted(enumerate(filings), key=lambda entry: entry[1].subject):
        given = (filing.subject, secret, asked_by, filing.reason, filing.received_at, request_id, filing.hold)
        made[i] = file(session, *given)
    people = sorted({filing.subject for filing in filings})
    holding: set[int] = set()
    for some in batched(people):
        holding.update(session.scalars(select(Example.model_id).where(Example.subject.in_(some)).distinct()))
    for model_id in sorted(holding):
        session.get(Model, model_id, with_for_update=True)
    for erasure in {erasure.id: erasure for erasure in made.values()}.values():
        resolve(session, erasure)
    return [made[i] for i in range(len(filings))]


def file(
    session: Session,
    subject: bytes,
    secret: bytes,
    asked_by: str,
    reason: str | None,
    received_at: datetime | None,
    request_id: str | None,
    hold: bool,
) -> Erasure:
    """Note a request, or find the one that is open for the same person; one that is held stays held."""
    open_one = select(Erasure).where(Erasure.subject == subject, Erasure.state.in_(PENDING))
    erasure = session.scalar(open_one)
    begun = erasure is None
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
            "state": ErasureState.HELD if hold else ErasureState.RECEIVED,
        }
        # somebody else may just have begun it; as an error it would be in PostgreSQL's log, with the hash
        session.execute(inserting(session, Erasure).values(values).on_conflict_do_nothing())
        erasure = session.scalars(open_one).one()
    elif received_at is not None and received_at < erasure.received_at:
        erasure.received_at = received_at
        extended_at = trail.last(session, erasure, EventKind.EXTENDED)
        # an extension counts if it was told within the first month, which began earlier than was known
        in_time = extended_at is not None and extended_at <= months_after(received_at, 1)
        erasure.due_at = months_after(received_at, 3 if in_time else 1)
    trail.note(session, erasure, EventKind.FILED, asked_by)
    if begun and erasure.state is ErasureState.HELD:
        trail.note(session, erasure, EventKind.HELD, asked_by)
    return erasure


def resolve(session: Session, erasure: Erasure) -> None:
    """Snapshot what is there of the person in each model, take it out of force, and make the jobs due.

    A request that is held goes no further than that: no job is due.
    """
    held = erasure.state is ErasureState.HELD
    holding = select(Example.model_id).where(Example.subject == erasure.subject).distinct()
    for model_id in sorted(session.scalars(holding)):
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:
            continue
        about = (Example.model_id == model_id, Example.subject == erasure.subject)
        in_force = list(session.scalars(select(Example.position).where(*about, Example.removed.is_(None))))
        if in_force:
            ledger.remove(session, model, Example.subject, [""], [erasure.subject])
        positions = sorted(session.scalars(select(Example.position).where(*about)))
        part = session.get(Part, (erasure.id, model_id))
        if part is None:
            part = Part(erasure_id=erasure.id, model_id=model_id, model=model.name, positions=[], restricted=[])
            session.add(part)
        new = set(positions) - set(part.positions)
        if new or part.state is ErasureState.FAILED:
            part.positions = sorted({*part.positions, *positions})  # some may be deleted by now
            part.restricted = sorted({*part.restricted, *in_force})
            part.examples, part.first, part.removed = len(part.positions), part.positions[0], model.head
            part.newest = newest(session, model_id) if new else part.newest
            part.state, part.error = ErasureState.HELD if held else ErasureState.RECEIVED, None
        session.flush()
        if not held:
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    conclude(session, erasure)


def newest(session: Session, model_id: int) -> int:
    """The number of the model's newest version; 0 if there is none."""
    return session.scalar(select(func.max(Version.number)).where(Version.model_id == model_id)) or 0


def find(session: Session, id: str) -> Erasure:
    erasure = session.get(Erasure, id) if id.isprintable() else None
    if erasure is None:
        raise NotFound("erasure_not_found", "There is no such erasure.")
    return erasure


def parts_of(session: Session, erasure: Erasure) -> list[Part]:
    parts = select(Part).where(Part.erasure_id == erasure.id).order_by(Part.model)
    return list(session.scalars(parts.execution_options(populate_existing=True)))


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """Try again what failed."""
    if erasure.state is not ErasureState.FAILED:
        raise Conflict("erasure_not_failed", f"The erasure has not failed: it is {erasure.state}.")
    trail.note(session, erasure, EventKind.RETRIED, by)
    resolve(session, erasure)
    for part in parts_of(session, erasure):
        model = session.get(Model, part.model_id, with_for_update=True)
        if part.state is ErasureState.FAILED and model is not None:
            part.state, part.error = ErasureState.RECEIVED, None
            session.flush()
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    conclude(session, erasure)


def note_deletion(session: Session, model: Model) -> None:
    """A model is about to be deleted, and with it all that it knew; `deleting.complete` looks whether that is so."""
    published = select(Version.number).where(Version.model_id == model.id, Version.mlflow.is_not(None))
    in_mlflow = session.scalar(published.limit(1)) is not None
    for part, erasure in open_parts(session, model.id, PENDING):
        if part.state is not ErasureState.HELD:
            part.state, part.error = ErasureState.PURGING, None
        words = "the model was deleted, with everything it knew"
        part.figures = {"method": "deleted", "words": words, "in_mlflow": in_mlflow}
        conclude(session, erasure)


def open_parts(session: Session, model_id: int, states: Sequence[ErasureState] = OPEN) -> list[tuple[Part, Erasure]]:
    """What is still to be done for a model, the oldest first."""
    query = select(Part, Erasure).join(Erasure, Erasure.id == Part.erasure_id)
    query = query.where(Part.model_id == model_id, Part.state.in_(states), Erasure.state.in_(states))
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
    receipt = receipts.append(session, erasure.id, told(session, erasure, parts_of(session, erasure)))
    erasure.state, erasure.receipt = ErasureState.COMPLETED, receipt.number
    erasure.subject = erasure.reason = erasure.extension = None


def take_in(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """Take in what came about people while their erasures were open; the ids of those erasures.

    A caller's pipeline may not have heard of the request yet.
    """
    late: set[str] = set()
    by_subject = {erasure.subject: erasure for erasure in erasures if erasure.subject is not None}
    for some in batched(list(by_subject)):
        in_force = (Example.subject.in_(some), Example.removed.is_(None))
        for subject in session.scalars(select(Example.subject).where(*in_force).distinct()).all():
            erasure = by_subject[subject or b""]
            resolve(session, erasure)
            late.add(erasure.id)
    return late


def restrict_held(database: Database) -> None:
    """Take out of force what came about people whose requests are held. Called by the tick."""
    held = select(Erasure).where(Erasure.state == ErasureState.HELD)
    came = exists().where(Example.subject == Erasure.subject, Example.removed.is_(None))
    with database.read() as session:
        if session.scalar(held.where(came).limit(1)) is None:
            return
    with database.write() as session:
        take_in(session, session.scalars(held.where(came)).all())
