"""A person's decision about a rejected version: accept its examples, or discard them. Called by the endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import suppressions
from core.errors import Conflict, NotFound
from core.jobs import queue
from core.ledger import quarantine
from core.ledger.quarantine import is_quarantined, quarantined_versions
from core.promotion.decision import Requester, request_promotion
from core.tables.erasures import Identifier
from core.tables.jobs import Job, JobKind
from core.tables.ledger import RETURNED, Change, ChangeKind, Example
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.erased_examples import may_depend_on_erased
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

    If the model has learnt other changes since, or examples that the version was trained on are out of force, the
    version itself is outdated: the model is then adapted to the accepted examples, and the gate only warns about them.
    Raises Conflict if there is nothing left to accept, because its examples were discarded or removed.
    """
    require_rejected(session, model, version)
    rejected = find_rejected_count(session, model, version)
    waiting = quarantined_versions(session, model).get(version.number, 0)
    if not waiting and rejected != 0:
        detail = f"The examples of version {version.number} were discarded or removed. Send them again to use them."
        raise Conflict("version_not_rejected", detail)
    complete = not has_removals_since(session, model, version)
    count = quarantine.accept(session, model, version.number, requested_subjects(session))
    if count:
        model.accepted_position, model.accepted_by = model.head, by
    # a rejected retrain has no parent and no examples of its own: it is current unless the tip covers more changes
    tip = tip_of(session, model)
    latest = version.parent == model.tip or (not count and (tip is None or tip.position <= version.position))
    current = latest and complete and count == rejected and is_usable(session, version)
    if version.state is VersionState.REJECTED:
        version.state = VersionState.CANDIDATE if current else VersionState.SUPERSEDED
    if current:
        request_promotion(session, model, version, Requester.ACCEPTANCE, by)
    return Decision(count, queue.enqueue_adaptation(session, model, request_id))


def discard(session: Session, model: Model, version: Version) -> Decision:
    """Remove the examples of a rejected version for good. The version stays rejected."""
    require_rejected(session, model, version)
    return Decision(quarantine.discard(session, model, version.number), None)


def requested_subjects(session: Session) -> list[bytes]:
    """Hashes of the people whose erasure is requested and not completed."""
    asked = select(Identifier.subject).where(Identifier.subject.is_not(None))
    return [subject for subject in session.scalars(asked) if subject is not None]


def accept_returned(session: Session, model: Model, ids: Sequence[str] | None, request_id: str | None) -> Decision:
    """Put quarantined examples of returning people into force, except those of people whose erasure is requested.

    New examples of the same people are no longer quarantined. Without `ids`, this is about all of them.
    """
    excluded = set(requested_subjects(session))
    rows = {at: subject for at, subject in find_returned(session, model, ids).items() if subject not in excluded}
    count = quarantine.accept(session, model, RETURNED, excluded, rows)
    suppressions.lift(session, set(rows.values()))
    return Decision(count, queue.enqueue_adaptation(session, model, request_id) if count else None)


def discard_returned(session: Session, model: Model, ids: Sequence[str] | None) -> Decision:
    """Make quarantined examples of returning people ordinary removed examples, which are deleted soon."""
    rows = find_returned(session, model, ids)
    quarantine.release(session, model, list(rows))
    return Decision(len(rows), None)


def find_returned(session: Session, model: Model, ids: Sequence[str] | None) -> dict[int, bytes]:
    """The subjects of quarantined examples of returning people, by position. Raises NotFound if an id is unknown."""
    query = select(Example.position, Example.id, Example.subject).where(is_quarantined(model, RETURNED))
    rows = session.execute(query.order_by(Example.position)).all()
    if ids is not None:
        there, wanted = {row.id for row in rows}, set(ids)
        for i, id_ in enumerate(ids):
            if id_ not in there:
                message = "no example of a returning person with this id is in quarantine"
                raise NotFound.at(("ids", i), "example_not_found", message)
        rows = [row for row in rows if row.id in wanted]
    return {row.position: row.subject for row in rows if row.subject is not None}


def is_usable(session: Session, version: Version) -> bool:
    """Whether a version can serve: it was not trained on data of a person who was, or is being, erased."""
    purged = version.state is VersionState.PURGED or version.purge_at is not None
    return not purged and not may_depend_on_erased(session, version)


def find_rejected_count(session: Session, model: Model, version: Version) -> int | None:
    """The number of examples that a version's rejection took out of force; None if all have left the quarantine since.

    Read from the ledger: examples that were discarded or removed may have been deleted.
    """
    retrained = version.job_id is not None and session.get_one(Job, version.job_id).kind is JobKind.RETRAIN
    if retrained:
        return 0
    gone = select(Example.removed).where(is_quarantined(model, version.number)).limit(1)
    at = session.scalar(gone)
    if at is None:
        return None
    together = (Change.model_id == model.id, Change.first <= at, Change.last >= at)
    return session.execute(select(Change.last - Change.first + 1).where(*together)).scalar_one()


def has_removals_since(session: Session, model: Model, version: Version) -> bool:
    """Whether examples were removed or corrected after a version's position, which it may have been trained on."""
    kinds = Change.kind.in_((ChangeKind.REMOVED, ChangeKind.REPLACED))
    later = select(Change.last).where(Change.model_id == model.id, Change.last > version.position, kinds)
    return session.scalar(later.limit(1)) is not None


def require_rejected(session: Session, model: Model, version: Version) -> None:
    """Raise Conflict unless a version was rejected. An erasure may have purged it, and left others in quarantine."""
    if version.state is not VersionState.REJECTED and version.number not in quarantined_versions(session, model):
        detail = f"Version {version.number} is {version.state}. Only a rejected version can be accepted or discarded."
        raise Conflict("version_not_rejected", detail)
