"""Reading the audit log: pages of entries, and the copies that somebody has of a model's versions and examples."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from core.tables.audit import COPIES, Action, AuditEntry
from core.tables.keys import Key
from core.tables.models import Model


@dataclass(frozen=True)
class AuditFilter:
    """Which entries a listing contains; None: all."""

    actor: str | None = None
    """Id of the API key."""
    action: Action | None = None
    model: str | None = None
    erasure: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def page_entries(session: Session, chosen: AuditFilter, before: int, limit: int) -> list[tuple[AuditEntry, str | None]]:
    """The entries with smaller ids than `before`, newest first, each with the name of the actor's key."""
    query = select(AuditEntry, Key.name).outerjoin(Key, Key.id == AuditEntry.actor).where(AuditEntry.id < before)
    wanted = {
        AuditEntry.actor: chosen.actor,
        AuditEntry.action: chosen.action,
        AuditEntry.model: chosen.model,
        AuditEntry.erasure_id: chosen.erasure,
    }
    for column, value in wanted.items():
        if value is not None:
            query = query.where(column == value)
    if chosen.since is not None:
        query = query.where(AuditEntry.at >= chosen.since)
    if chosen.until is not None:
        query = query.where(AuditEntry.at < chosen.until)
    return [(entry, name) for entry, name in session.execute(query.order_by(AuditEntry.id.desc()).limit(limit))]


@dataclass(frozen=True)
class Copies:
    """Identical copies that one API key made."""

    action: str
    actor: str
    version: int | None
    count: int
    first: datetime
    last: datetime


def copies_of(
    session: Session, model: Model, versions: Collection[int], first_position: int, last_position: int
) -> list[Copies]:
    """Downloads of these versions, and exports of the examples at positions from `first_position` up to
    `last_position`, oldest first. The database counts identical ones: a program may download a version every night.

    These copies are outside of Amend, and an erasure does not reach them. Entries older than the retention period of
    the audit log are deleted, so the list may be incomplete for older copies. For the part of an erasure, pass the
    versions that were trained on the person's data, the part's `first_position`, and its `removal_position - 1`.
    """
    # an entry with the same name that is older than the model is about a deleted one
    ours = (AuditEntry.model == model.name, AuditEntry.at >= model.created_at, AuditEntry.action.in_(COPIES))
    exported = and_(
        AuditEntry.action == Action.EXAMPLES_EXPORTED, AuditEntry.position.between(first_position, last_position)
    )
    same = (AuditEntry.action, AuditEntry.actor, AuditEntry.version)
    times = (func.count(), func.min(AuditEntry.at), func.max(AuditEntry.at))
    found = select(*same, *times).where(*ours, or_(AuditEntry.version.in_(versions), exported)).group_by(*same)
    return [Copies(*row) for row in session.execute(found.order_by(func.min(AuditEntry.id)))]
