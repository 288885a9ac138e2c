"""Withdrawing a model that has no training examples left."""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.erasure.purge import record_purges
from core.quality.drift_records import delete_report
from core.tables.ledger import HoldoutSample
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.erased_examples import open_parts, precedes_examples
from core.versions.purging import purge_version
from core.versions.queries import kept_versions
from core.webhooks.events import emit


def withdraw(session: Session, model: Model) -> None:
    """Withdraw a model: it stops predicting, and versions trained on data of people who are being erased are purged."""
    if model.champion is not None:  # steps are repeated, so it may be withdrawn already
        emit(session, WebhookEvent.MODEL_WITHDRAWN, model=model.name, version=model.champion)
    model.champion = model.tip = None
    session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model.id))
    delete_report(session, model.id)
    parts = [part for part, _ in open_parts(session, model.id)]
    for version in kept_versions(session, model.id):
        if not all(precedes_examples(part, version.position) for part in parts):
            record_purges(session, [version])
            purge_version(session, version)
        elif version.state is VersionState.CHAMPION:
            version.state = VersionState.SUPERSEDED
    enqueue_event(session, model, TrackingEventKind.ALIASES)
