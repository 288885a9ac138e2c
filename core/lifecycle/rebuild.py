"""Rebuilding a purged version: whether its position still has enough examples. Called by the endpoint and the job.

A rebuilt version is trained on the examples that were added up to the position of the purged one and are still in
force. Examples that were removed, corrected, quarantined or erased since are left out, whether or not their content
still exists, so that the result does not depend on when it was deleted.
"""

from dataclasses import dataclass

from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs import queue
from core.tables.jobs import Job
from core.tables.ledger import Change, ChangeKind, Example
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.store import Store

MIN_SHARE = 0.5
"""If fewer of a position's examples are still in force, a model of the rest would not be what the caller asked for."""


@dataclass(frozen=True)
class Remainder:
    """What is left of the examples that were in force at a position."""

    before: int
    """Number of examples that were in force at the position, training and holdout."""
    left: int
    """How many of them are still in force."""
    trained: int
    """How many of those are training examples."""

    @classmethod
    def at(cls, session: Session, model: Model, position: int) -> "Remainder":
        """Count the examples of a position. Every example that comes into or goes out of force takes a position."""
        size = case((Change.last > position, position), else_=Change.last) - Change.first + 1
        came = (ChangeKind.ADDED, ChangeKind.LABELLED, ChangeKind.RESTORED)
        went = (ChangeKind.REMOVED, ChangeKind.QUARANTINED)
        signed = case((Change.kind.in_(came), size), (Change.kind.in_(went), -size), else_=0)
        total = select(func.coalesce(func.sum(signed), 0)).where(Change.model_id == model.id, Change.first <= position)
        in_force = or_(Example.removed.is_(None), Example.removed > model.head)
        old = (Example.model_id == model.id, Example.position <= position, in_force)
        counts = select(func.count(), func.count(case((Example.holdout.is_(False), 1)))).where(*old)
        left, trained = session.execute(counts).one()
        return cls(int(session.scalar(total) or 0), left, trained)


def needs_rebuild(store: Store, version: Version) -> bool:
    """Whether a version can be promoted only by rebuilding it: its weights are deleted, or kept out of use.

    After a restore of the database, a file may be missing although the version is not purged.
    """
    purged = version.state is VersionState.PURGED or version.purge_at is not None
    return purged or not store.exists(version.file)


def request_rebuild(session: Session, model: Model, version: Version, by: str, request_id: str | None) -> Job:
    """Enqueue the job that rebuilds a purged version and promotes the result, for the key `by`."""
    require_rebuildable(session, model, version)
    return queue.enqueue_rebuild(session, model, version, by, request_id)


def require_rebuildable(session: Session, model: Model, version: Version) -> Remainder:
    """What is left of the examples of a version; raises Conflict if that is too little to rebuild it."""
    found = Remainder.at(session, model, version.position)
    if found.trained == 0 or found.left < MIN_SHARE * found.before:
        left = f"Only {found.left} of the {found.before} examples that were in force at its position still are"
        raise Conflict(
            "version_not_rebuildable",
            f"Version {version.number} was purged and cannot be rebuilt. {left}. Promote another version, or retrain.",
        )
    return found
