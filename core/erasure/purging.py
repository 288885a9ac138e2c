"""Deleting what is kept of removed examples, and looking whether it is gone.

`PURGED` says for every table what becomes of the person in it: the map that a test compares with the schema, so that a
new table cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.database import Database, now, rows_changed
from core.erasure.fates import doomed, drop_figures, forget_figures
from core.errors import Unavailable
from core.ledger.queries import batched
from core.metadata import Metadata, OrphanFile
from core.models.policy import duration, policy_of
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import Job, JobKind, JobState
from core.tables.ledger import Example, HoldoutSample
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.store import Store

PURGED = {
    "examples": "rows of the person are deleted",
    "holdout_samples": "positions of rows in force; made anew, should it name one of the person's",
    "versions": "those that knew the person are purged: files and figures deleted, what they cost stays",
    "erasures": "the keyed hash of the person and the reasons are deleted when it ends; why one was refused stays",
    "erasure_events": "who did what about a request, by the id of their key",
    "erasure_parts": "positions of the person's examples, which are numbers of rows that are gone",
    "answers": "encrypted, and the request hashed, under the caller's own key; deleted after a day",
    "removals": "counts alone",
    "changes": "kinds and positions alone",
    "models": "nothing about people",
    "jobs": "nothing about people",
    "outbox": "nothing about people",
    "stretches": "numbers of ranges, and names of files with sums over all examples, which go when a pass ends",
    "workers": "nothing about people",
    "promotions": "nothing about people",
    "comparisons": "figures of whole models; those of versions that knew the person are deleted",
    "entries": "nothing about people",
    "leases": "nothing about people",
    "keys": "nothing about people",
    "marks": "nothing about people",
    "litter": "names of files that are about to go",
    "receipts": "another keyed hash, which tells the person only to who has the secret",
}
"""Table -> what becomes of the person in it."""


TIDY = "tidy"
REWRITTEN = 2 * 2**30
"""Bytes of an SQLite file that can be written anew in passing."""
REWRITTEN_ONCE = b" rewritten"
"""How a mark ends when the file was written anew, and only its log is to be emptied."""
CHECKPOINT_MILLISECONDS = 200


def purge_versions(session: Session, model: Model, part: Part) -> None:
    """Purge the versions that knew the person, or set the date when they will be."""
    keep = policy_of(model).erasure.keep_superseded
    forget_figures(session, part)
    found = session.scalars(select(Version).where(doomed(part), Version.state != VersionState.PURGED)).all()
    if keep is None:
        for version in found:
            discard(session, version)
        return
    for version in found:
        version.purge_at = version.purge_at or now() + duration(keep)


def discard(session: Session, version: Version) -> None:
    """Give up a version's weights: it is a line in the history from now on."""
    version.state, version.purge_at = VersionState.PURGED, None
    drop_figures(version)
    session.merge(OrphanFile(path=version.file))


def overdue_versions(session: Session, model_id: int) -> list[Version]:
    """Versions that were kept for a while, and whose time is over."""
    over = (Version.model_id == model_id, Version.purge_at <= now(), Version.state != VersionState.PURGED)
    return list(session.scalars(select(Version).where(*over)))


def purge_removed(session: Session, model: Model) -> int:
    """Delete all examples that are removed and that no version has to forget any more; how many.

    Of an example that an older version still knows, the person's hash and the positions stay: should the person ask to
    be forgotten, they tell which versions must go.
    """
    horizon = horizon_of(session, model)
    if horizon is None:
        return 0
    old = (Example.model_id == model.id, Example.removed <= horizon, Example.position.not_in(withheld(session, model)))
    known = sa.exists().where(
        Version.model_id == model.id,
        Version.state != VersionState.PURGED,
        Version.position >= Example.position,
        Version.position < Example.removed,
    )
    kept = (*old, Example.subject.is_not(None), known)
    blank = update(Example).where(*kept, func.length(Example.x) > 0).values(x=b"", y=0.0, id="")
    rest = delete(Example).where(*old, sa.or_(Example.subject.is_(None), ~known))
    return rows_changed(session, blank) + rows_changed(session, rest)


def horizon_of(session: Session, model: Model) -> int | None:
    """The position up to which removed examples are needed by nobody; None while a job may be reading them."""
    at_work = Job.state.in_((JobState.QUEUED, JobState.RUNNING))
    training = select(Job.id).where(Job.model_id == model.id, Job.kind != JobKind.ERASE, at_work)
    if session.scalar(training.limit(1)) is not None:
        return None
    numbers = [number for number in (model.champion, model.tip) if number]
    serving = select(func.min(Version.position)).where(Version.model_id == model.id, Version.number.in_(numbers))
    position: int | None = session.scalar(serving) if numbers else None
    return model.head if position is None else position


def withheld(session: Session, model: Model) -> sa.BindParameter[Any]:
    """Positions of examples that must be kept: a request to erase them is held, and may be refused."""
    held = select(Part.restricted).join(Erasure, Erasure.id == Part.erasure_id)
    found = session.scalars(held.where(Part.model_id == model.id, Erasure.state == ErasureState.HELD))
    positions = [position for positions in found for position in positions]
    # written into the statement: SQLite takes 32 766 parameters at the most
    return sa.bindparam("withheld", positions, sa.BigInteger, expanding=True, literal_execute=True)


def something_removed(session: Session, model: Model) -> bool:
    """Whether there is anything for `purge_removed` to delete."""
    horizon = horizon_of(session, model)
    if horizon is None:
        return False
    whole = (func.length(Example.x) > 0, Example.position.not_in(withheld(session, model)))
    old = (Example.model_id == model.id, Example.removed <= horizon, *whole)
    return session.scalar(select(Example.position).where(*old).limit(1)) is not None


def delete_examples(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """Delete examples by position; how many were there."""
    if sampled(session, model_id, positions):  # the adaptation saw to it, unless nothing was left to adapt to
        session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model_id))
    count = 0
    for some in batched(positions):
        count += rows_changed(session, delete(Example).where(Example.model_id == model_id, Example.position.in_(some)))
    return count


def sampled(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many of these positions the model's sample of the holdout names."""
    kept = session.scalar(select(HoldoutSample.positions).where(HoldoutSample.model_id == model_id))
    return int(np.isin(positions, np.frombuffer(kept, np.int64)).sum()) if kept else 0


def tidying(database: Database, tidied: bool) -> str:
    """What was done to the database after rows were deleted, for the receipt."""
    if not database.sqlite:
        left = "pages may hold copies until they are used again; its write-ahead log and backups are the operator's"
        return f"PostgreSQL: tables vacuumed, {left}"
    log = "its write-ahead log emptied" if tidied else "its write-ahead log is emptied once nobody reads the past"
    if size_of(database) <= REWRITTEN:
        return f"SQLite: deleted rows overwritten, the file written anew, {log}"
    return f"SQLite: deleted rows overwritten, {log}; pages may hold copies until a VACUUM"


def tidy(database: Database, rewrite: bool = True) -> bool:
    """Have the database drop the bytes of deleted rows; False if somebody who reads kept it from that.

    SQLite overwrites them, but leaves copies behind where it moved rows from page to page: the file is written anew.
    """
    with database.engine.connect() as connection:
        # the driver's own connection: these statements may not run inside a transaction
        driver: Any = connection.connection.driver_connection
        if database.sqlite:
            return tidy_file(database, driver, rewrite and size_of(database) <= REWRITTEN)
        driver.autocommit = True
        try:
            driver.execute("VACUUM examples, erasures, answers")
        finally:
            driver.autocommit = False
    return True


def tidy_file(database: Database, driver: Any, rewrite: bool) -> bool:
    """Write an SQLite file anew and empty its log. Nobody waits for long: it is tried again, should somebody read."""
    [patience] = driver.execute("PRAGMA busy_timeout").fetchone()
    try:
        if rewrite:
            driver.execute("VACUUM")
        # it keeps writers out while it waits for readers
        driver.execute(f"PRAGMA busy_timeout = {CHECKPOINT_MILLISECONDS}")
        return not driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except database.engine.dialect.loaded_dbapi.OperationalError as error:
        raise Unavailable("database_busy", "The database is busy; it is tidied later.") from error
    finally:
        driver.execute(f"PRAGMA busy_timeout = {patience}")


def size_of(database: Database) -> int:
    """Bytes of an SQLite file."""
    with database.read() as session:
        pages = [session.scalar(sa.text(f"PRAGMA {name}")) or 0 for name in ("page_count", "page_size")]
    return int(pages[0] * pages[1])


def due_to_tidy(session: Session) -> None:
    """Have the database tidied once this transaction is committed, by us or by whoever comes after us."""
    session.merge(Metadata(name=TIDY, value=now().isoformat().encode()))


def tidy_if_due(database: Database) -> None:
    """Tidy the database, if somebody meant to and could not."""
    with database.read() as session:
        mark = session.get(Metadata, TIDY)
    if mark is None:
        return
    done = tidy(database, rewrite=not mark.value.endswith(REWRITTEN_ONCE))
    with database.write() as session:
        ours = (Metadata.name == TIDY, Metadata.value == mark.value)  # not what became due meanwhile
        if done:
            session.execute(delete(Metadata).where(*ours))
        elif not mark.value.endswith(REWRITTEN_ONCE):
            session.execute(update(Metadata).where(*ours).values(value=mark.value + REWRITTEN_ONCE))


def looked(
    session: Session, store: Store, part: Part, subject: bytes | None, remembered: set[int], lost: int
) -> dict[str, int]:
    """What is still there of the person: each figure must be 0. What the champion remembers, and how many files no
    version has, are the same for all people of a model, and asked once."""
    rows = 0
    for some in batched(part.positions):
        query = select(func.count()).where(Example.model_id == part.model_id, Example.position.in_(some))
        rows += session.scalar(query) or 0
    about = (Example.model_id == part.model_id, Example.subject == subject, Example.position <= part.removed)
    found = {
        "examples by position": rows,
        "examples by person": session.scalar(select(func.count()).where(*about)) or 0,
    }
    purged = session.scalars(select(Version.file).where(doomed(part), Version.state == VersionState.PURGED))
    found["files of purged versions"] = sum(store.exists(file) for file in purged)
    found["files without a version"] = lost
    found["rows of the holdout's sample"] = sampled(session, part.model_id, part.positions)
    found["memory of the champion"] = len(remembered.intersection(part.positions))
    return found
