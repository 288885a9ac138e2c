"""Writing the audit log, in the transaction of the action itself: no audited action without its entry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.tables.audit import Action, AuditEntry

ROWS_PER_TRANSACTION = 10_000
"""Expired entries that one transaction deletes, so that writers do not wait for long."""
COLUMNS = "at, actor, action, model, client, request_id, counts"
"""The columns of an entry about added examples, which is written without SQLAlchemy (`values_of`)."""


@dataclass(frozen=True)
class Origin:
    """Who sent a request, and from where."""

    actor: str
    """Id of the API key."""
    client: str | None = None
    """IP address of the client."""
    request_id: str | None = None


@dataclass(frozen=True)
class About:
    """What an action was done to."""

    model: str | None = None
    version: int | None = None
    position: int | None = None
    erasure_id: str | None = None
    job_id: str | None = None
    object_id: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


NOTHING = About()


def record(session: Session, origin: Origin, action: Action, about: About = NOTHING) -> None:
    """Append an entry, in the transaction of the action."""
    given = {name: value for name, value in vars(about).items() if value is not None and value != {}}
    session.execute(insert(AuditEntry), [{"at": now(), "action": action.value, **vars(origin), **given}])


def values_of(origin: Origin, action: Action, model: str, counts: dict[str, int]) -> dict[str, Any]:
    """The parameters of an INSERT of `COLUMNS`, for statements that write an entry along with something else."""
    about = {"action": action.value, "audited_model": model, "counts": json.dumps(counts)}
    return {"actor": origin.actor, "client": origin.client, "request_id": origin.request_id, **about}


def delete_expired(database: Database, retention: timedelta) -> int:
    """Delete the entries whose retention period has ended; returns how many."""
    cutoff, count = now() - retention, 0
    while True:
        with database.read() as session:
            old = select(AuditEntry.id).where(AuditEntry.at < cutoff).order_by(AuditEntry.at)
            ids = session.scalars(old.limit(ROWS_PER_TRANSACTION)).all()
        if not ids:
            return count
        with database.write() as session:
            # by range: entries are in the order of their ids, up to transactions that ran at the same time
            expired = delete(AuditEntry).where(AuditEntry.id <= max(ids), AuditEntry.at < cutoff)
            session.execute(expired.execution_options(synchronize_session=False))
        count += len(ids)
