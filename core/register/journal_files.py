"""The files of the journal in the store. Each has the entries of a transaction; small files are merged later.

The content of a file is computed from the database whenever it is written: contents of examples, and details of open
requests, are in it only as long as they are in the database. A file that the database does not know was written after
the backup that the database was restored from.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, UtcDateTime, utc_text
from core.errors import NotFound
from core.ledger.journal import new_file
from core.ledger.queries import batched
from core.settings import Settings, parse_days
from core.tables.erasures import UNENDED, Erasure, Identifier
from core.tables.journal import JournalEntry, JournalFile, JournalKind
from core.tables.ledger import HAS_CONTENT, Example
from core.versions.store import Store

FOLDER = "journal"
NAME = re.compile(r"[0-9a-f]{32}\.json")
MAX_SMALL_FILES = 100
"""If there are more, they are merged."""
LARGE_SIZE = 1_000
"""Hashes in a file that is no longer merged with others."""


def path_of(name: str) -> str:
    return f"{FOLDER}/{name}"


def write(database: Database, store: Store) -> None:
    """Write all files with new or changed entries, and delete those without entries.

    A file loses its entries when these move to another file, or expire. It is deleted only after all files that were
    to be written at the same time: one of them may have its entries now.
    """
    with database.read() as session:
        superseded = session.scalars(select_superseded()).all()  # first: their entries are in files that follow
        names = session.scalars(select(JournalEntry.file).where(JournalEntry.written.is_(False)).distinct()).all()
    written = [write_file(database, store, name) for name in names]
    if all(written):
        delete_files(database, store, superseded)


def write_file(database: Database, store: Store, name: str) -> bool:
    """Write a file with all of its entries; returns false if another transaction is changing some of them."""
    with database.write() as session:
        # locked until it is written: otherwise an older content could replace a newer one
        session.get(JournalFile, name, with_for_update=True)
        entries = lock_entries(session, JournalEntry.file == name)
        if len(entries) < (session.scalar(select(func.count()).where(JournalEntry.file == name)) or 0):
            return False
        if entries:
            store.write(path_of(name), describe_file(session, entries))
        for entry in entries:
            entry.written = True
    return True


def lock_entries(session: Session, *chosen: ColumnElement[bool]) -> Sequence[JournalEntry]:
    """Lock entries, except those that another transaction is changing: waiting for it could be a deadlock."""
    query = select(JournalEntry).where(*chosen).order_by(JournalEntry.at)
    return session.scalars(query.with_for_update(skip_locked=True)).all()


def may_have_contents(session: Session, model_id: int, until: int) -> bool:
    """Whether files may still have contents of examples that were deleted, at positions of a model up to a given one.

    That is so until every file with a correction of them is written again, and files that were merged are deleted.
    """
    corrections = (JournalEntry.model_id == model_id, JournalEntry.first <= until)
    unwritten = select(JournalEntry.id).where(*corrections, JournalEntry.written.is_(False))
    return any(session.scalar(query.limit(1)) is not None for query in (unwritten, select_superseded()))


def select_superseded() -> Select[str]:
    """Names of the files without entries, which are about to be deleted."""
    return select(JournalFile.name).where(~exists().where(JournalEntry.file == JournalFile.name))


def delete_files(database: Database, store: Store, names: Sequence[str]) -> None:
    for name in names:
        store.delete(path_of(name))
    if names:
        with database.write() as session:
            for some in batched(names):
                session.execute(delete(JournalFile).where(JournalFile.name.in_(some)))


def delete_unfinished(database: Database, store: Store) -> None:
    """Delete what killed processes wrote of files: it may have contents that were deleted since."""
    for path in store.unfinished(FOLDER):
        with database.write() as session:
            # locked, so that nobody is writing it. Nobody writes a file that the database does not know: its process
            # was killed before the database was restored.
            session.get(JournalFile, path.rpartition("/")[2], with_for_update=True)
            store.delete_unfinished(path)


def merge_small(database: Database) -> None:
    """Move the entries of small files to a new one, if there are many small files.

    `write` writes the new file and deletes the others.
    """
    small = select(JournalEntry.file).group_by(JournalEntry.file)
    small = small.having(func.sum(JournalEntry.size) < LARGE_SIZE)
    with database.read() as session:
        if len(session.scalars(small).all()) <= MAX_SMALL_FILES:
            return
    with database.write() as session:
        new = new_file(session)
        for some in batched(session.scalars(small).all()):
            for entry in lock_entries(session, JournalEntry.file.in_(some)):
                entry.file, entry.written = new, False


def delete_expired(database: Database, settings: Settings) -> None:
    """Delete entries that no backup which may be restored lacks. Entries of open requests stay."""
    moment = now() - parse_days(settings.backup_retention)
    open_requests = select(Erasure.id).where(Erasure.state.in_(UNENDED))
    waiting = exists().where(JournalEntry.file == JournalFile.name, JournalEntry.erasure_id.in_(open_requests))
    newest = select(func.max(JournalEntry.at)).where(JournalEntry.file == JournalFile.name).scalar_subquery()
    with database.read() as session:
        old = session.scalars(select(JournalFile.name).where(newest < moment, ~waiting)).all()
    if old:
        with database.write() as session:
            for some in batched(old):
                session.execute(delete(JournalEntry).where(JournalEntry.file.in_(some)))


# The content of a file


def describe_file(session: Session, entries: Sequence[JournalEntry]) -> bytes:
    """The content of a file with these entries."""
    body = json.dumps([describe(session, entry) for entry in entries])
    secret = session.info["settings"].secret
    return json.dumps({"hmac": authenticate(body, secret), "entries": body}).encode()


def authenticate(body: str, secret: bytes) -> str:
    """The code by which a replay recognises a file of this installation."""
    return hmac.digest(secret, b"journal file:" + body.encode(), "sha256").hex()


def describe(session: Session, entry: JournalEntry) -> dict[str, Any]:
    """An entry as in its file, with what it refers to."""
    found: dict[str, Any] = {"id": entry.id, "kind": entry.kind.value, "at": utc_text(entry.at)}
    found |= {"model": entry.model_id} if entry.model_id is not None else {}
    found |= {"erasure": entry.erasure_id} if entry.erasure_id is not None else {}
    found["content"] = entry.content
    if entry.kind is JournalKind.CORRECTED:
        found["rows"] = describe_rows(session, entry.model_id, entry.positions or [])
    if entry.kind is JournalKind.REQUESTED:
        erasure = session.get(Erasure, entry.erasure_id)
        pending = erasure is not None and erasure.state in UNENDED
        found["request"] = describe_request(session, erasure) if erasure is not None and pending else None
    return found


def describe_rows(
    session: Session, model_id: int | None, positions: Sequence[int | None]
) -> list[dict[str, Any] | None]:
    """The contents of corrected examples; null for those that were deleted since."""
    rows: dict[int, dict[str, Any]] = {}
    for some in batched([at for at in positions if at is not None]):
        chosen = (Example.model_id == model_id, Example.position.in_(some), HAS_CONTENT)
        for row in session.scalars(select(Example).where(*chosen)):
            rows[row.position] = {
                "x": base64.b64encode(row.x).decode(),
                "y": row.y,
                "subject": None if row.subject is None else row.subject.hex(),
                "holdout": row.holdout,
                "weight": row.weight,
                "time": None if row.time is None else utc_text(row.time),
                "source": row.source,
                "unseen": row.unseen,
            }
    return [None if at is None else rows.get(at) for at in positions]


def describe_request(session: Session, erasure: Erasure) -> dict[str, Any]:
    """All columns of an open request, and the hashes by which the person's examples are found, by token."""
    rows = session.execute(select(Identifier.token, Identifier.subject).where(Identifier.erasure_id == erasure.id))
    subjects = {token: encode(subject) for token, subject in rows}
    columns = {column.key: encode(getattr(erasure, column.key)) for column in Erasure.__table__.columns}
    return {"columns": columns, "subjects": subjects}


def encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return utc_text(value)
    return value.value if isinstance(value, StrEnum) else value


def decode_request(stored: dict[str, Any]) -> dict[str, Any]:
    """The columns of a request, as `describe_request` encoded them; those of other releases are left out."""
    found: dict[str, Any] = {}
    for column in Erasure.__table__.columns:
        value = stored.get(column.key)
        if value is not None and isinstance(column.type, UtcDateTime):
            value = datetime.fromisoformat(value)
        if column.key in stored:
            found[column.key] = value
    return found


# Comparison with the database


def find_unknown(session: Session, store: Store) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The files that the database does not know, with their entries by name, and the paths of stray files.

    A file is stray if it was not written by this installation.
    """
    # first the files: a name is in the database before the file exists
    paths = store.names(FOLDER)
    known = set(session.scalars(select(JournalFile.name))) if paths else set[str]()
    secret = session.info["settings"].secret
    found: dict[str, list[dict[str, Any]]] = {}
    strays: list[str] = []
    for path in paths:
        name = path.rpartition("/")[2]
        if name in known:
            continue
        try:
            entries = read_entries(store.get(path), secret) if NAME.fullmatch(name) else None
        except NotFound:  # merged with others meanwhile
            continue
        if entries is None:
            strays.append(path)
        else:
            found[name] = entries
    return found, strays


def read_entries(data: bytes, secret: bytes) -> list[dict[str, Any]] | None:
    """The entries in a file; None if it was not written by this installation."""
    try:
        content = json.loads(data)
        body = str(content["entries"])
        genuine = hmac.compare_digest(str(content["hmac"]), authenticate(body, secret))
        entries: list[dict[str, Any]] = json.loads(body)
    except (ValueError, KeyError, TypeError):
        return None
    return entries if genuine else None
