"""Decisions about an erasure (approve, hold, refuse, withdraw, extend, retry) and their consequences."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from core import ledger
from core.erasure import state_changes
from core.erasure.identifiers import others_of, subjects_of
from core.erasure.queries import parts_of
from core.erasure.requests import resolve
from core.erasure.subject_examples import positions_of
from core.errors import Conflict
from core.jobs import queue
from core.ledger import unlabelled_examples
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
    """Approve a request that is held or unmatched, so that it is carried out.

    Raises Conflict if AMEND_ERASURE_APPROVAL requires another key than the one that filed it.
    """
    lock(session, erasure)  # before the check: another transaction may be adding identifiers
    if state_changes.needs_second_person(session) and by in state_changes.filers_of(session, erasure):
        message = (
            "AMEND_ERASURE_APPROVAL requires a second person: approve the request with a different key than it was"
        )
        raise Conflict("approval_by_filer", f"{message} filed with.")
    approve_again(session, erasure, by)


def approve_again(session: Session, erasure: Erasure, by: str) -> None:
    """Approve a request whoever filed it, because it is a repetition of one that was approved."""
    parts = lock(session, erasure)
    state_changes.approve(session, erasure, by)
    carry_out(session, erasure, parts)


def carry_out(session: Session, erasure: Erasure, parts: Sequence[tuple[Part, Model | None]]) -> None:
    """Begin with the parts of a request that was approved."""
    for part, model in parts:
        state_changes.receive_part(part)
        if model is None:  # deleted meanwhile
            state_changes.begin_purge(part)
        part.newest_version = newest_number(session, part.model_id)
    session.flush()
    resolve(session, erasure)


def hold(session: Session, erasure: Erasure, by: str) -> None:
    """Hold an open request of which nothing was deleted yet, until somebody approves, refuses or withdraws it."""
    lock(session, erasure)
    state_changes.hold(session, erasure, by)


def refuse(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Refuse a request (GDPR Art. 12(5), 17(3)): its examples are put back in force, and the models adapted to them."""
    parts, subjects = lock(session, erasure), subjects_of(session, erasure)
    state_changes.refuse(session, erasure, reason, by)
    put_back(session, parts, subjects, erasure.request_id)


def withdraw(session: Session, erasure: Erasure, by: str) -> None:
    """End a request because the person no longer wants it: its examples are put back in force."""
    parts, subjects = lock(session, erasure), subjects_of(session, erasure)
    state_changes.withdraw(session, erasure, by)
    put_back(session, parts, subjects, erasure.request_id)


def put_back(
    session: Session, parts: Sequence[tuple[Part, Model | None]], subjects: Sequence[bytes], request_id: str | None
) -> None:
    """Put the examples of a request that has ended back in force, and adapt the models to them.

    Those that another request of the same person keeps out of force stay with that request.
    """
    others = others_of(session, subjects)
    taken = {subject for theirs in others.values() for subject in theirs}
    free = [subject for subject in subjects if subject not in taken]
    for part, model in parts:
        if model is None:  # deleted meanwhile
            part.restricted = []
            continue
        for other, theirs in others.items():
            hand_over(session, part, other, model, theirs)
        unlabelled_examples.lift(session, model.id, free)
        part.restricted = ledger.restore(session, model, part.restricted)
        if part.restricted:
            queue.enqueue_adaptation(session, model, request_id)


def hand_over(session: Session, part: Part, other: Erasure, model: Model, subjects: Sequence[bytes]) -> None:
    """Let another request keep its person's examples out of force that this one had taken out."""
    shared = set(part.restricted).intersection(positions_of(session, subjects, model.id))
    part.restricted = [position for position in part.restricted if position not in shared]
    taker = session.get(Part, (other.id, part.model_id))
    if taker is not None:  # it has found the same examples
        taker.restricted = sorted({*taker.restricted, *shared})


def lift(session: Session, restriction: Erasure, reason: str, by: str) -> None:
    """Lift a restriction: the person's examples are put back in force, unless an erasure request keeps them out."""
    parts, subjects = lock(session, restriction), subjects_of(session, restriction)
    state_changes.lift(session, restriction, reason, by)
    put_back(session, parts, subjects, restriction.request_id)


def extend(session: Session, erasure: Erasure, reason: str, by: str) -> None:
    """Extend the due date of a request."""
    session.refresh(erasure, with_for_update=True)
    state_changes.extend(session, erasure, reason, by)


def retry(session: Session, erasure: Erasure, by: str) -> None:
    """Retry a failed erasure."""
    state_changes.retry(session, erasure, by)
    resolve(session, erasure)
    for part in parts_of(session, erasure):
        model = session.get(Model, part.model_id, with_for_update=True)
        if part.state is ErasureState.FAILED and model is not None:
            state_changes.receive_part(part)
            session.flush()
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    state_changes.conclude(session, erasure)
