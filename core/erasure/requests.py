"""Receiving requests: finds a person's examples in all models, takes them out of force, and enqueues `erase` jobs."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from core import ledger
from core.analyses.records import delete_analyses
from core.database import Database
from core.erasure import receipt_content, state_changes
from core.erasure.filing import file_all, file_restriction
from core.erasure.identifiers import subjects_by_erasure, subjects_of
from core.erasure.queries import select_waiting_with_examples
from core.erasure.receipt_content import Deleted
from core.erasure.request_details import RequestDetails
from core.erasure.subject_examples import (
    count_examples,
    model_ids_of,
    positions_of,
    requests_with_new_examples,
    subjects_in_force,
)
from core.jobs import queue
from core.ledger import unlabelled_examples
from core.tables.erasures import WAITING, Erasure, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.ledger import Example
from core.tables.models import Model
from core.versions.erased_examples import has_examples_at
from core.versions.queries import champion_of, newest_number

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
    filed, grown = file_all(session, filings, secret, by, request_id)
    subjects = {subject for filing in filings for subject in filing.subjects}
    unapproved = grown if state_changes.needs_second_person(session) else set[str]()
    for others in subjects_by_erasure(session, sorted(unapproved)).values():
        subjects.update(others)
    lock_models(session, subjects)
    for erasure in {erasure.id: erasure for erasure in filed}.values():
        if erasure.id in unapproved:  # nobody has approved the identifiers that were added
            session.refresh(erasure, with_for_update=True)
            state_changes.hold_again(session, erasure, by)
        resolve(session, erasure)
    return filed


def restrict_processing(
    session: Session, filing: RequestDetails, secret: bytes, by: str, request_id: str | None
) -> Erasure:
    """Restrict the processing of a person's data (GDPR Art. 18): no training uses it until this is lifted."""
    restriction = file_restriction(session, filing, secret, by, request_id)
    lock_models(session, filing.subjects)
    resolve(session, restriction)
    return restriction


def lock_models(session: Session, subjects: Collection[bytes]) -> None:
    """Lock all models that have examples of the given people, in the order that all transactions use."""
    for model_id in model_ids_of(session, subjects):
        session.get(Model, model_id, with_for_update=True)


def resolve(session: Session, erasure: Erasure) -> None:
    """Record the person's examples in each model, take them out of force, and enqueue the jobs.

    No job is enqueued for a held request. For a restriction, the models are adapted.
    """
    subjects = subjects_of(session, erasure)
    for model_id in model_ids_of(session, subjects):
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:
            continue
        state_changes.match(session, erasure)
        changed = restrict(session, erasure, model, subjects)
        session.flush()
        if erasure.state is ErasureState.RESTRICTED and changed:
            queue.enqueue_adaptation(session, model, erasure.request_id)
        elif erasure.state not in WAITING:
            queue.enqueue(session, model, JobKind.ERASE, erasure.request_id)
    state_changes.conclude(session, erasure)


def restrict(session: Session, erasure: Erasure, model: Model, subjects: Sequence[bytes]) -> bool:
    """Take the person's examples in a model out of force, and record their positions; returns whether there were any
    in force."""
    in_force, analyses = positions_of(session, subjects, model.id, in_force=True), 0
    if in_force:
        ledger.remove(session, model, Example.subject, [""] * len(subjects), subjects)
        analyses = delete_analyses(session, model.id, before=model.head)  # their results may name the examples
    hidden = unlabelled_examples.restrict(session, model.id, subjects)
    positions = positions_of(session, subjects, model.id)
    earlier = session.get(Part, (erasure.id, model.id))
    known = earlier.positions if earlier else []
    examples = count_examples(session, model.id, {*known, *positions}) - count_examples(session, model.id, known)
    part = earlier or state_changes.begin_part(session, erasure, model)
    new = set(positions) - set(part.positions)
    # a new part may have nothing new: another request may have hidden the person's examples without labels already
    if earlier is None or new or hidden or part.state is ErasureState.FAILED:
        part.positions = sorted({*part.positions, *positions})  # some of them may be deleted already
        part.restricted = sorted({*part.restricted, *in_force})
        part.examples = (part.examples or 0) + examples + hidden
        # no version was trained on examples without a label
        part.first_position = part.positions[0] if part.positions else NEVER
        if new or earlier is None:
            part.removal_position = model.head if part.positions else 0
        part.newest_version = newest_number(session, model.id) if new else part.newest_version
        note_use(session, model, part, analyses)
        state_changes.receive_part(part, state_changes.initial_state(erasure))
    return bool(in_force)


def note_use(session: Session, model: Model, part: Part, analyses: int) -> None:
    """Record whether the version in use was trained on the person's examples when they were taken out of force, and
    the number of analyses that were deleted then."""
    champion, noted = champion_of(session, model), receipt_content.read(part)
    trained = champion is not None and has_examples_at(part, champion.position, champion.removals_position)
    noted = replace(noted, was_in_use=bool(noted.was_in_use or trained))
    if analyses:
        deleted = noted.deleted or Deleted()
        noted = replace(noted, deleted=replace(deleted, analyses=(deleted.analyses or 0) + analyses))
    receipt_content.write(part, noted)


def include_new_examples(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """Include examples that arrived while the erasures of their people were open; returns the ids of those erasures.

    A caller's pipeline may still send data of the person.
    """
    by_id, late = {erasure.id: erasure for erasure in erasures}, find_late(session, erasures)
    found = subjects_by_erasure(session, sorted(late))
    lock_models(session, {subject for subjects in found.values() for subject in subjects})
    for id in sorted(late):
        resolve(session, by_id[id])
    return late


def find_late(session: Session, erasures: Sequence[Erasure]) -> set[str]:
    """The ids of erasures whose people have examples that arrived since, also if these were removed again."""
    ids = [erasure.id for erasure in erasures]
    owners = {s: id for id, subjects in subjects_by_erasure(session, ids).items() for s in subjects}
    there = subjects_in_force(session, list(owners))
    return {owners[subject] for subject in there} | requests_with_new_examples(session, ids)


def restrict_waiting(database: Database) -> None:
    """Take examples out of force that arrived while the requests of their people waited for a decision, or the
    processing of their data was restricted. Called by the tick.
    """
    with database.read() as session:
        if session.scalar(select_waiting_with_examples().limit(1)) is None:
            return
    with database.write() as session:
        include_new_examples(session, session.scalars(select_waiting_with_examples()).all())
