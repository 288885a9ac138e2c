"""Orphans: files in the store that no version refers to, and their deletion."""

import structlog
from sqlalchemy import delete, exists, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, rows_changed
from core.errors import Unavailable
from core.tables.bookkeeping import OrphanFile
from core.tables.jobs import Job, JobState
from core.tables.versions import Version, VersionState
from core.versions.store import Store, StoredFile

log = structlog.get_logger("core")


def put_tracked(database: Database, store: Store, folder: str, data: bytes, owner: str) -> StoredFile:
    """Store a version's file. It is an orphan until the version is recorded, and deleted if the worker dies first."""

    def record_orphan(name: str) -> None:
        with database.write() as session:
            session.add(OrphanFile(path=name, owner=owner))

    return store.put(folder, data, before=record_orphan)


def mark_orphan(session: Session, path: str) -> None:
    """Record a file as an orphan, to be deleted."""
    session.merge(OrphanFile(path=path))


def disown(session: Session, path: str) -> None:
    """Release an orphan for deletion, because the job that wrote it does not need it."""
    session.execute(update(OrphanFile).where(OrphanFile.path == path).values(owner=None))


def claim(session: Session, path: str, owner: str) -> bool:
    """Claim an orphan for a version, in the transaction that records it; False if it may have been deleted."""
    return rows_changed(session, delete(OrphanFile).where(OrphanFile.path == path, OrphanFile.owner == owner)) == 1


def find_strays(session: Session, store: Store, folder: str) -> list[str]:
    """Files in a model's folder that neither versions nor orphans refer to, as after a restore of the database.

    Also files that a process was writing when it was killed.
    """
    # in this order: a file is recorded as an orphan before it is written, and is a version's once that row is deleted
    files, orphans = list_files(store, folder), set(session.scalars(select(OrphanFile.path)))
    return sorted(files - orphans - used_files(session))


def count_unused(session: Session, store: Store, folder: str) -> int:
    """Number of files in a model's folder that no version refers to: strays, and those that running jobs wrote."""
    return len(list_files(store, folder) - used_files(session))


def list_files(store: Store, folder: str) -> set[str]:
    """The names of all files in a folder, also of those that are being written."""
    return {*store.unfinished(folder), *store.names(folder)}


def used_files(session: Session) -> set[str]:
    return set(session.scalars(select(Version.file).where(Version.state != VersionState.PURGED)))


def sweep(database: Database, store: Store) -> None:
    """Delete all orphans whose job is not running. Deletions that fail are retried later."""
    is_running = exists().where(
        Job.lease_owner == OrphanFile.owner, Job.state == JobState.RUNNING, Job.lease_expires_at > now()
    )
    with database.read() as session:
        paths = list(session.scalars(select(OrphanFile.path).where(~is_running)))
    for path in paths:
        with database.write() as session:
            # from here on, no version can claim it
            release = update(OrphanFile).where(OrphanFile.path == path, ~is_running).values(owner=None)
            if rows_changed(session, release) == 0:
                continue
        try:
            store.delete(path)
        except Unavailable as error:
            log.warning("orphan_deletion_failed", exc_info=error)
            continue
        with database.write() as session:
            session.execute(delete(OrphanFile).where(OrphanFile.path == path))
