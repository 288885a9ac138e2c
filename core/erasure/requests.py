"""Receiving requests: finds a person's examples in all models, takes them out of force, and enqueues `erase` jobs."""

from collections.abc import Collection, Sequence

from sqlalchemy.orm import Session

from core import ledger
from core.database import Database
from core.erasure import states
from core.erasure.queries import model_ids_of, positions_of, select_held_with_examples, subjects_in_force
from core.erasure.states import RequestDetails
from core.jobs import queue
from core.ledger import pending
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.ledger import Example
from core.tables.models import Model
from core.versions.queries import newest_number

NEVER = 2**62
"""A position that no ledger reaches."""


def receive(session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None = None) -> Erasure:
    """File an erasure, or join the open one of the same person; examples that arrived since are included."""
    [erasure] = receive_all(session, [filing], secret, by, request_id)
    return erasure


def receive_all(
    session: Session, filings: Sequence[RequestDetails], secret: bytes, by: str, request_id: str | None
) -> list[Erasure]:
    """File many erasures, one for each person, and return them in the order of the filings.

    Locks are taken in the same order by all callers: first the requests, then their models.
    """
    found: dict[int, Erasure] = {}
    for i, filing in sorted(enumerate(filings), key=lambda entry: entry[1].subject):
        found[i] = states.file(session, filing, secret, by, request_id)
    lock_models(session, {filing.subject for filing in filings})
    for erasure in {erasure.id: erasure for erasure in found.values()}.values():
        resolve(session, erasure)
    return [found[i] for i in range(len(filings))]


def lock_models(session: Session, subjects: Collection[bytes]) -> None:
    """Lock all models that have examples of the given people, in the order that all transactions use."""
    for model_id in model_ids_of(session, subjects):
        session.get(Model, model_id, with_for_update=True)


def resolve(session: Session, erasure: Erasure) -> None:
    """Record the person's examples in each model, take them out of force, and enqueue the jobs.

    No job is enqueued for a held request.
    """
    held = erasure.state is ErasureState.HELD
    for model_id in model_ids_of(session, [erasure.subject]):
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:
            continue
        restrict(session, erasure, model, held)
        session.flush()
        if not held:
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    states.conclude(session, erasure)


def restrict(session: Session, erasure: Erasure, model: Model, held: bool) -> None:
    """Take the person's examples in a model out of force, and record their positions."""
    in_force = positions_of(session, erasure.subject, model.id, in_force=True)
    if in_force:
        ledger.remove(session, model, Example.subject, [""], [erasure.subject])
    hidden = pending.restrict(session, model.id, erasure.subject)
    positions = positions_of(session, erasure.subject, model.id)
    part = session.get(Part, (erasure.id, model.id)) or states.begin_part(session, erasure, model)
    new = set(positions) - set(part.positions)
    if new or hidden or part.state is ErasureState.FAILED:
        part.positions = sorted({*part.positions, *positions})  # some of them may be deleted already
        part.restricted = sorted({*part.restricted, *in_force})
        part.examples = (part.examples or 0) + len(new) + hidden
        # no version was trained on examples without a label
        part.first_position = part.positions[0] if part.positions else NEVER
        part.removal_position = model.head if part.positions else 0
        part.newest_version = newest_number(session, model.id) if new else part.newest_version
        states.receive_part(part, held)


def include_new_examples(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """Include examples that arrived while the erasures of their people were open; returns the ids of those erasures.

    A caller's pipeline may still send data of the person.
    """
    by_subject = {erasure.subject: erasure for erasure in erasures if erasure.subject is not None}
    there = subjects_in_force(session, list(by_subject))
    lock_models(session, there)
    late = [by_subject[subject] for subject in sorted(there)]
    for erasure in late:
        resolve(session, erasure)
    return {erasure.id for erasure in late}


def restrict_held(database: Database) -> None:
    """Take examples out of force that arrived while the requests of their people were held. Called by the tick."""
    with database.read() as session:
        if session.scalar(select_held_with_examples().limit(1)) is None:
            return
    with database.write() as session:
        include_new_examples(session, session.scalars(select_held_with_examples()).all())
