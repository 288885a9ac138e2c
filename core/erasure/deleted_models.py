"""Erasures of a deleted model, which are completed once nothing of the model is left."""

from dataclasses import replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import receipt_content, receipts, state_changes
from core.erasure.copies import find_copies
from core.erasure.purge import record_purges, vacuum_database
from core.erasure.queries import select_parts_of_deleted_models
from core.erasure.receipt_content import ModelReport
from core.erasure.receipt_text import DELETED, Trace
from core.register import journal_files
from core.tables.erasures import PENDING, ErasureState, Part
from core.tables.ledger import Example, PendingExample, RecordedPrediction
from core.tables.models import Model
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version
from core.vacuum import mark_vacuum_due
from core.versions.erased_examples import open_parts
from core.versions.store import Store, folder_of


def note_deletion(session: Session, model: Model) -> None:
    """Prepare the erasures of a model for its deletion; `complete_erasures` verifies later that all of it is gone."""
    published = select(Version.number).where(Version.model_id == model.id, Version.mlflow.is_not(None))
    in_mlflow = session.scalar(published.limit(1)) is not None
    kept = select(Version).where(Version.model_id == model.id, Version.purge_at.is_not(None))
    record_purges(session, session.scalars(kept).all())
    for part, erasure in open_parts(session, model.id, PENDING):
        if part.state is not ErasureState.HELD:
            state_changes.begin_purge(part)
        copies, used = find_copies(session, model, part), receipt_content.read(part).was_in_use
        noted = ModelReport(
            model=part.model,
            examples=part.examples,
            outcome=DELETED,
            copies=copies,
            was_in_use=used,
            in_mlflow=in_mlflow,
        )
        receipt_content.write(part, noted)
        state_changes.conclude(session, erasure)


def complete_erasures(database: Database, store: Store, mlflow: bool) -> None:
    """Complete the erasures of deleted models of which nothing is left. Called by the tick."""
    waiting = select_parts_of_deleted_models()
    with database.read() as session:
        if session.scalar(waiting.limit(1)) is None:
            return
    cleanup = vacuum_database(database)
    with database.write() as session:
        for part, erasure in session.execute(waiting).all():
            found = find_model_traces(session, store, part, mlflow)
            if any(found.values()) or journal_files.may_have_contents(session, part.model_id, part.removal_position):
                continue  # the next tick checks again
            receipt_content.write(
                part, replace(receipt_content.read(part), checked=found, database=cleanup, in_mlflow=None)
            )
            state_changes.complete_part(session, part, erasure)
            mark_vacuum_due(session)
    receipts.write_files(database, store)


def find_model_traces(session: Session, store: Store, part: Part, mlflow: bool) -> dict[str, int]:
    """Counts of what is left of a deleted model: all must be 0."""
    tables = (Example, PendingExample, RecordedPrediction)
    rows = sum(session.scalar(select(func.count()).where(t.model_id == part.model_id)) or 0 for t in tables)
    files = len(store.names(folder_of(part.model_id)))
    found = {Trace.MODEL_EXAMPLES.value: rows, Trace.MODEL_FILES.value: files}
    if mlflow or receipt_content.read(part).in_mlflow:
        untold = select(func.count()).where(
            TrackingEvent.model_id == part.model_id, TrackingEvent.kind == TrackingEventKind.DELETED
        )
        found[Trace.MODEL_MLFLOW.value] = session.scalar(untold) or 0
    return found
