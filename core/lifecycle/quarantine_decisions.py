"""A person's decision about a rejected version: accept its examples, or discard them. Called by the endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs import queue
from core.ledger import quarantine
from core.ledger.quarantine import quarantined_versions
from core.tables.erasures import PENDING, Erasure
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.erased_examples import may_depend_on_erased
from core.versions.promotion import promote
from core.versions.queries import tip_of


@dataclass(frozen=True)
class Decision:
    """What a decision about a rejected version did."""

    examples: int
    """Number of examples that were put back into force, or removed."""
    job: str | None
    """Id of the job that adapts the model; None if nothing has to be adapted."""


def accept(session: Session, model: Model, version: Version, by: str, request_id: str | None) -> Decision:
    """Put the examples of a rejected version back into force and promote it.

    If the model has learnt other changes since, the version itself is outdated: the model is then adapted to the
    accepted examples, and the gate only warns about them.
    """
    require_rejected(session, model, version)
    asked = select(Erasure.subject).where(Erasure.state.in_(PENDING), Erasure.subject.is_not(None))
    excluded = [subject for subject in session.scalars(asked) if subject is not None]
    count = quarantine.accept(session, model, version.number, excluded)
    if count:
        model.accepted_position = model.head
    # a rejected retrain has no parent and no examples of its own: it is current unless the tip covers more changes
    tip = tip_of(session, model)
    latest = version.parent == model.tip or (not count and (tip is None or tip.position <= version.position))
    current = latest and is_usable(session, version)
    if version.state is VersionState.REJECTED:
        version.state = VersionState.CANDIDATE if current else VersionState.SUPERSEDED
    if current:
        promote(session, model, version, by)
        model.confirmed = version.number
    return Decision(count, queue.enqueue_adaptation(session, model, request_id))


def discard(session: Session, model: Model, version: Version) -> Decision:
    """Remove the examples of a rejected version for good. The version stays rejected."""
    require_rejected(session, model, version)
    return Decision(quarantine.discard(session, model, version.number), None)


def is_usable(session: Session, version: Version) -> bool:
    """Whether a version can serve: it was not trained on data of a person who was, or is being, erased."""
    purged = version.state is VersionState.PURGED or version.purge_at is not None
    return not purged and not may_depend_on_erased(session, version)


def require_rejected(session: Session, model: Model, version: Version) -> None:
    """Raise Conflict unless a version was rejected. An erasure may have purged it, and left others in quarantine."""
    if version.state is not VersionState.REJECTED and version.number not in quarantined_versions(session, model):
        detail = f"Version {version.number} is {version.state}. Only a rejected version can be accepted or discarded."
        raise Conflict("version_not_rejected", detail)
