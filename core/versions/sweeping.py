"""Deleting files that nothing refers to: those of deleted models, and of versions that were never recorded."""

from __future__ import annotations

import structlog
from sqlalchemy import delete, exists, select

from core.database import Database, now
from core.jobs.tables import Job, JobState
from core.marks import Litter
from core.versions.store import Store, Stored

log = structlog.get_logger("core")


def put_noted(database: Database, store: Store, folder: str, data: bytes, owner: str) -> Stored:
    """Store a version's file. Should its worker die before the version is recorded, the file is swept away."""

    def note(name: str) -> None:
        with database.write() as session:
            session.add(Litter(path=name, owner=owner))

    return store.put(folder, data, before=note)


def sweep(database: Database, store: Store) -> None:
    """Delete what is noted as litter; what cannot be deleted now stays noted."""
    with database.read() as session:
        at_work = exists().where(
            Job.lease_owner == Litter.owner, Job.state == JobState.RUNNING, Job.lease_until > now()
        )
        paths = list(session.scalars(select(Litter.path).where(~at_work)))
    for path in paths:
        try:
            store.delete(path)
        except OSError as error:
            log.warning("files that nothing refers to could not be deleted yet", exc_info=error)
            continue
        with database.write() as session:
            session.execute(delete(Litter).where(Litter.path == path))
