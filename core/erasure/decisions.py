"""What the controller decides about a request: that it is carried out, that it is not, or that it takes longer."""

from __future__ import annotations

from sqlalchemy.orm import Session

from core import ledger
from core.database import now
from core.erasure import trail
from core.erasure.requests import months_after, newest, parts_of, resolve
from core.errors import Conflict
from core.jobs import queue
from core.tables.erasures import PENDING, Erasure, ErasureState, EventKind, Part
from core.tables.models import Model

BEGUN = (ErasureState.PURGING, ErasureState.COMPLETED)


def lock(session: Session, erasure: Erasure) -> list[tuple[Part, Model | None]]:
    """Hold an erasure and the models it concerns, these first, as jobs do; models that are deleted are None."""
    found = sorted(parts_of(session, erasure), key=lambda part: part.model_id)
    models = {part.model_id: session.get(Model, part.model_id, with_for_update=True) for part in found}
    session.refresh(erasure, with_for_update=True)
    return [(part, models.get(part.model_id)) for part in parts_of(session, erasure)]


def approve(session: Session, erasure: Erasure, by: str) -> None:
    """Have a request that was held carried out."""
    parts = lock(session, erasure)
    if erasure.state is not ErasureState.HELD:
        raise Conflict("erasure_not_held", f"The erasure does not wait for an approval: it is {erasure.state}.")
    trail.note(session, erasure, EventKind.APPROVED, by)
    erasure.state = ErasureState.RECEIVED
    for part, model in parts:
        # of a model that was deleted meanwhile it is looked whether all is gone
        part.state = ErasureState.PURGING if model is None else ErasureState.RECEIVED
        part.newest = newest(session, part.model_id)
    session.flush()
    resolve(session, erasure)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Refuse a request (GDPR Art. 12(5), 17(3)): what it took out of force comes back, and the models follow."""
    parts = lock(session, erasure)
    if erasure.state not in PENDING:
        raise Conflict("erasure_ended", f"The erasure has ended already: {erasure.state}.")
    if any(part.state in BEGUN or "deleted" in (part.figures or {}) for part, _ in parts):
        raise Conflict("erasure_begun", "What is known of the person is being deleted already.")
    trail.note(session, erasure, EventKind.REFUSED, by)
    erasure.state, erasure.refusal, erasure.completed_at = ErasureState.REFUSED, reason, now()
    erasure.subject = erasure.reason = None
    for part, model in parts:
        part.state = ErasureState.REFUSED
        if model is not None and ledger.restore(session, model, part.restricted):
            queue.enqueue_adaptation(session, model, erasure.request_id)


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Move the due date by two months, once, and within the first month (GDPR Art. 12(3))."""
    session.refresh(erasure, with_for_update=True)
    if erasure.state not in PENDING:
        raise Conflict("erasure_ended", f"The erasure has ended already: {erasure.state}.")
    if erasure.extension is not None:
        raise Conflict("erasure_extended", "The due date was moved already; the law allows that once.")
    if now() > months_after(erasure.received_at, 1):
        raise Conflict("erasure_late", "The first month is over: the person had to be told of an extension within it.")
    trail.note(session, erasure, EventKind.EXTENDED, by)
    erasure.extension, erasure.due_at = reason, months_after(erasure.received_at, 3)
