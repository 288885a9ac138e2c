"""Decisions about an erasure (approve, refuse, extend, retry) and their consequences."""

from sqlalchemy.orm import Session

from core import ledger
from core.erasure import states
from core.erasure.queries import parts_of
from core.erasure.requests import resolve
from core.jobs import queue
from core.ledger import pending
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.models import Model
from core.versions.queries import newest_number


def lock(session: Session, erasure: Erasure) -> list[tuple[Part, Model | None]]:
    """Lock the models of an erasure and then the erasure, in the order that jobs use; deleted models are None."""
    found = sorted(parts_of(session, erasure), key=lambda part: part.model_id)
    models = {part.model_id: session.get(Model, part.model_id, with_for_update=True) for part in found}
    session.refresh(erasure, with_for_update=True)
    return [(part, models.get(part.model_id)) for part in parts_of(session, erasure)]


def approve(session: Session, erasure: Erasure, by: str) -> None:
    """Approve a held request, so that it is carried out."""
    parts = lock(session, erasure)
    states.approve(session, erasure, by)
    for part, model in parts:
        states.receive_part(part)
        if model is None:  # deleted meanwhile
            states.begin_purge(part)
        part.newest_version = newest_number(session, part.model_id)
    session.flush()
    resolve(session, erasure)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Refuse a request (GDPR Art. 12(5), 17(3)): its examples are put back in force, and the models adapted to them."""
    parts, subject = lock(session, erasure), erasure.subject
    states.refuse(session, erasure, reason, by)
    for part, model in parts:
        if model is not None:
            pending.lift(session, model.id, subject)
        part.restricted = [] if model is None else ledger.restore(session, model, part.restricted)
        if model is not None and part.restricted:
            queue.enqueue_adaptation(session, model, erasure.request_id)


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Extend the due date of a request."""
    session.refresh(erasure, with_for_update=True)
    states.extend(session, erasure, reason, by)


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """Retry a failed erasure."""
    states.retry(session, erasure, by)
    resolve(session, erasure)
    for part in parts_of(session, erasure):
        model = session.get(Model, part.model_id, with_for_update=True)
        if part.state is ErasureState.FAILED and model is not None:
            states.receive_part(part)
            session.flush()
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    states.conclude(session, erasure)
