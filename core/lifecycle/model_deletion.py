"""Deleting a model."""

from sqlalchemy.orm import Session

from core.erasure.deleted_models import note_deletion
from core.ledger import journal
from core.ledger.removals import delete_examples
from core.tables.bookkeeping import OrphanFile
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.vacuum import mark_vacuum_due
from core.versions.store import folder_of


def delete_model(session: Session, model: Model) -> None:
    """Delete a model and everything it owns; its files become orphans, which are deleted after the commit."""
    folder = folder_of(model.id)
    journal.note_deletion(session, model)
    delete_examples(session, model)
    enqueue_event(session, model, TrackingEventKind.DELETED)
    note_deletion(session, model)
    session.delete(model)
    session.add(OrphanFile(path=folder))
    mark_vacuum_due(session)
