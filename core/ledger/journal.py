"""The journal: changes that concern people, and that a restore of an older backup must not undo.

Removals, corrections, erasure requests and deletions of models are noted in the transaction that makes them.
`core.register.journal_files` writes the entries to the store; `core.lifecycle.replay_after_restore` repeats those that
a restored database lacks. An entry names examples, subjects and sources only by keyed hashes.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, exists, select, update
from sqlalchemy.orm import Session

from core.database import utc_text
from core.tables.journal import JournalEntry, JournalFile, JournalKind
from core.tables.ledger import HAS_CONTENT, Change, ChangeKind, Example
from core.tables.models import Model

FILE = "journal_file"
CHANGED = "journal_changed"
"""Set if the files of the journal are to be written after the commit."""
REPLAYING = "journal_replaying"
MOVED = (ChangeKind.REPLACED, ChangeKind.RESTORED, ChangeKind.LABELLED)
"""Changes that give an example a new position."""


def hash_name(secret: bytes, model_id: int, name: str | bytes) -> str:
    """The keyed hash by which the journal names an id, a subject or a source of a model."""
    data = name if isinstance(name, bytes) else name.encode()
    return hmac.digest(secret, b"journal:%d:" % model_id + data, "sha256")[:16].hex()


@contextmanager
def without_notes(session: Session) -> Iterator[None]:
    """Note nothing, because the journal has these changes already."""
    session.info[REPLAYING] = True
    try:
        yield
    finally:
        del session.info[REPLAYING]


def note(session: Session, kind: JournalKind, content: dict[str, Any], **fields: Any) -> None:
    """Add an entry. All entries of a transaction are in one file, which is written after the commit."""
    if session.info.get(REPLAYING):
        return
    if FILE not in session.info:
        session.info[FILE] = new_file(session)
        session.info[CHANGED] = True
    entry = JournalEntry(id=str(uuid.uuid4()), kind=kind, content=content, file=session.info[FILE], **fields)
    entry.size = max(1, *(len(value) for value in content.values() if isinstance(value, list)), 0)
    session.add(entry)


def new_file(session: Session) -> str:
    """Choose the name of a new file. The database knows every name before the file exists."""
    name = f"{uuid.uuid4().hex}.json"
    session.add(JournalFile(name=name))
    return name


def hash_names(session: Session, model: Model, names: Sequence[Any]) -> list[str]:
    secret = session.info["settings"].secret
    return [hash_name(secret, model.id, name) for name in dict.fromkeys(names)]


def note_removal(session: Session, model: Model, by: str, names: Sequence[Any]) -> None:
    """Note a removal by "id", "subject" or "source"."""
    note(session, JournalKind.REMOVED, {by: hash_names(session, model, names)}, model_id=model.id)


def note_span(session: Session, model: Model, first: int, last: int) -> None:
    """Note the removal of the examples at a range of positions, before they are removed.

    A restored database has other positions for examples that moved after the backup, so these are also noted by id.
    """
    if session.info.get(REPLAYING):
        return
    there = (Example.model_id == model.id, Example.position.between(first, last), HAS_CONTENT)
    moves = (Change.model_id == model.id, Change.kind.in_(MOVED), Change.first <= Example.position)
    moved = exists().where(*moves, Change.last >= Example.position)
    ids = session.scalars(select(Example.id).where(*there, moved)).all()
    content = {"positions": [first, last], "id": hash_names(session, model, ids)}
    note(session, JournalKind.REMOVED, content, model_id=model.id)


def note_correction(session: Session, model: Model, ids: Sequence[str], first: int) -> None:
    """Note that examples were corrected, and that the new ones are at the positions from `first` on."""
    content = {"id": hash_names(session, model, ids), "layout": model.layout_position}
    positions: list[int | None] = list(range(first, first + len(ids)))
    span = {"positions": positions, "first": first, "last": positions[-1]}
    note(session, JournalKind.CORRECTED, content, model_id=model.id, **span)


def note_request(session: Session, erasure_id: str) -> None:
    """Note that an erasure was requested."""
    note(session, JournalKind.REQUESTED, {}, erasure_id=erasure_id)


def note_deletion(session: Session, model: Model) -> None:
    """Note that a model is deleted; the contents of its corrections are deleted from the files."""
    note(session, JournalKind.MODEL_DELETED, {}, model_id=model.id)
    rewrite(session, JournalEntry.model_id == model.id, JournalEntry.kind == JournalKind.CORRECTED)


def forget_contents(session: Session, model_id: int, *gone: ColumnElement[bool]) -> None:
    """Have the contents of examples deleted from the files, before the rows themselves are deleted.

    `gone` are conditions on the examples.
    """
    between = Example.position.between(JournalEntry.first, JournalEntry.last)
    corrected = exists().where(Example.model_id == model_id, between, HAS_CONTENT, *gone)
    kind = JournalEntry.kind == JournalKind.CORRECTED
    rewrite(session, JournalEntry.model_id == model_id, kind, corrected)


def update_request(
    session: Session, erasure_id: str, suppressed: Sequence[str] = (), until: datetime | None = None
) -> None:
    """Have what is noted about a request written again, because it was changed or has ended.

    If the erasure is completed, `suppressed` are the hashes by which the person is recognised until a time.
    """
    if until is not None:
        content = {"suppressed": list(suppressed), "until": utc_text(until)}
        session.execute(update(JournalEntry).where(JournalEntry.erasure_id == erasure_id).values(content=content))
    rewrite(session, JournalEntry.erasure_id == erasure_id)


def rewrite(session: Session, *entries: ColumnElement[bool]) -> None:
    """Have some entries written again."""
    session.execute(update(JournalEntry).where(*entries).values(written=False))
    session.info[CHANGED] = True
