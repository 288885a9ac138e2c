"""Receiving requests: find a person's examples in all models, take them out of force, and enqueue jobs that erase."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy.orm import Session

from core import ledger
from core.database import Database
from core.erasure import states
from core.erasure.queries import (
    model_ids_of,
    positions_of,
    select_held_with_examples,
    subjects_in_force,
)
from core.erasure.states import RequestDetails
from core.jobs import queue
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.ledger import Example
from core.tables.models import Model
from core.versions.queries import newest_number


def receive(session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None = None) -> Erasure:
    """File an erasure, or join the open one of the same person; examples that came since are included."""
    [erasure] = receive_all(session, [filing], secret, by, request_id)
    return erasure


def receive_all(
    session: Session, filings: Sequence[RequestDetails], secret: bytes, by: str, request_id: str | None
) -> list[Erasure]:
    """Begin many erasures, one for each person, in the order of the filings.

    What is locked is locked in one order, whoever files the same people: first the requests, then their models.
    """
    found: dict[int, Erasure] = {}
    for i, filing in sorted(enumerate(filings), key=lambda entry: entry[1].subject):
        found[i] = states.file(session, filing, secret, by, request_id)
    lock_models(session, {filing.subject for filing in filings})
    for erasure in {erasure.id: erasure for erasure in found.values()}.values():
        resolve(session, erasure)
    return [found[i] for i in range(len(filings))]


def lock_models(session: Session, subjects: Collection[bytes]) -> None:
    """Lock all models that have examples of some people, in the order that all transactions use."""
    for model_id in model_ids_of(session, subjects):
        session.get(Model, model_id, with_for_update=True)


def resolve(session: Session, erasure: Erasure) -> None:
    """Record the person's examples in each model, take them out of force, and enqueue the jobs.

    A request that is held goes no further than that: no job is due.
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
    positions = positions_of(session, erasure.subject, model.id)
    part = session.get(Part, (erasure.id, model.id)) or states.begin_part(session, erasure, model)
    new = set(positions) - set(part.positions)
    if new or part.state is ErasureState.FAILED:
        part.positions = sorted({*part.positions, *positions})  # some may be deleted by now
        part.restricted = sorted({*part.restricted, *in_force})
        part.examples, part.first, part.removed = len(part.positions), part.positions[0], model.head
        part.newest = newest_number(session, model.id) if new else part.newest
        states.receive_part(part, held)


def include_new_examples(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """Include examples that came while the erasures of their people were open; returns the ids of those erasures.

    A caller's pipeline may not have heard of the request yet.
    """
    by_subject = {erasure.subject: erasure for erasure in erasures if erasure.subject is not None}
    there = subjects_in_force(session, list(by_subject))
    lock_models(session, there)
    late = [by_subject[subject] for subject in sorted(there)]
    for erasure in late:
        resolve(session, erasure)
    return {erasure.id for erasure in late}


def restrict_held(database: Database) -> None:
    """Take out of force the examples that came while their people's requests were held. Called by the tick."""
    with database.read() as session:
        if session.scalar(select_held_with_examples().limit(1)) is None:
            return
    with database.write() as session:
        include_new_examples(session, session.scalars(select_held_with_examples()).all())
