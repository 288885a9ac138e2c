"""Deleting files that nothing refers to: of deleted models, and of versions that the database does not know."""

from __future__ import annotations

import structlog
from sqlalchemy import delete, exists, select, update
from sqlalchemy.orm import Session

from core.database import Database, now, rows_changed
from core.errors import Unavailable
from core.tables.bookkeeping import OrphanFile
from core.tables.jobs import Job, JobState
from core.tables.versions import Version, VersionState
from core.versions.store import Store, StoredFile

log = structlog.get_logger("core")


def put_tracked(database: Database, store: Store, folder: str, data: bytes, owner: str) -> StoredFile:
    """Store a version's file. Should its worker die before the version is recorded, the file is swept away."""

    def note_first(name: str) -> None:
        with database.write() as session:
            session.add(OrphanFile(path=name, owner=owner))

    return store.put(folder, data, before=note_first)


def mark_orphan(session: Session, path: str) -> None:
    """Have a file swept away that belongs to nothing."""
    session.merge(OrphanFile(path=path))


def disown(session: Session, path: str) -> None:
    """Have a file swept away at once: the job that wrote it does not want it."""
    session.execute(update(OrphanFile).where(OrphanFile.path == path).values(owner=None))


def claim(session: Session, path: str, owner: str) -> bool:
    """Take a file out of the orphans, in the transaction that records its version; False if it may be swept already."""
    return rows_changed(session, delete(OrphanFile).where(OrphanFile.path == path, OrphanFile.owner == owner)) == 1


def find_strays(session: Session, store: Store, folder: str) -> list[str]:
    """Files in a model's folder that no version has: a database that was restored knows nothing of them."""
    # in the order of a file's life, backwards: it is noted before it is written, and a version's when the note goes
    there, noted = store.names(folder), set(session.scalars(select(OrphanFile.path)))
    named = set(session.scalars(select(Version.file).where(Version.state != VersionState.PURGED)))
    return [name for name in there if name not in noted | named]


def sweep(database: Database, store: Store) -> None:
    """Delete what is noted as an orphan; what cannot be deleted now stays noted."""
    at_work = exists().where(
        Job.lease_owner == OrphanFile.owner, Job.state == JobState.RUNNING, Job.lease_until > now()
    )
    with database.read() as session:
        paths = list(session.scalars(select(OrphanFile.path).where(~at_work)))
    for path in paths:
        with database.write() as session:
            # from here on no version can claim it
            ours = update(OrphanFile).where(OrphanFile.path == path, ~at_work).values(owner=None)
            if rows_changed(session, ours) == 0:
                continue
        try:
            store.delete(path)
        except Unavailable as error:
            log.warning("files that nothing refers to could not be deleted yet", exc_info=error)
            continue
        with database.write() as session:
            session.execute(delete(OrphanFile).where(OrphanFile.path == path))
