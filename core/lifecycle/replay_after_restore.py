"""Repeating, after a restore from a backup, what happened since and concerns people.

The store has the register's leaves, receipts and journal; a restored database lacks the newest of them. Until they are
replayed, no job runs (`core.register.lag`).
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import now
from core.erasure.request_replay import replay_requests, undo_requests
from core.jobs import queue
from core.ledger.journal import without_notes
from core.lifecycle.model_deletion import delete_model
from core.lifecycle.replayed_changes import ChangeReplay
from core.metadata import record_restore
from core.register import files, journal_files
from core.tables.audit import Suppression
from core.tables.journal import JournalEntry, JournalFile, JournalKind
from core.tables.models import Model
from core.versions.store import Store


@dataclass
class Replayed:
    """What a replay found and did."""

    receipts: int = 0
    """Receipts that the store had and the database lacked."""
    erasures: list[str] = field(default_factory=list)
    """Ids of the erasures that are carried out again."""
    requests: list[str] = field(default_factory=list)
    """Ids of the requests that the database lacked, or that somebody had decided about since the backup."""
    removals: int = 0
    """Examples that were removed again."""
    corrections: int = 0
    """Examples that were corrected again."""
    outdated: int = 0
    """Examples that were removed because their corrections could not be repeated; they must be sent again."""
    models: list[str] = field(default_factory=list)
    """Names of the models that were deleted again."""
    strays: list[str] = field(default_factory=list)
    """Files in the store that Amend did not write."""


def replay(session: Session, store: Store, secret: bytes, by: str, request_id: str | None) -> Replayed:
    """Repeat everything that the store has and the database lacks. Raises Conflict if a file was damaged."""
    record_restore(session)
    unknown, strays = journal_files.find_unknown(session, store)
    done = Replayed(strays=sorted([*strays, *files.find_strays(session, store)]))
    heads = {row.id: row.head for row in session.execute(select(Model.id, Model.head))}
    undone = undo_requests(session, store)
    with without_notes(session):
        missing = import_entries(session, unknown)
        replay_changes(session, missing, request_id, heads, done)
    requests = {entry["erasure"]: entry.get("request") for entry in missing if entry.get("erasure")}
    restore_suppressions(session, missing)
    found = replay_requests(session, store, secret, {id: value for id, value in requests.items() if value}, by)
    done.receipts, done.erasures, done.requests = found.receipts, found.repeated, [*undone, *found.restored]
    return done


def import_entries(session: Session, unknown: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Add the entries of unknown files to the journal; returns those that the database lacked, in order of time."""
    missing: dict[str, dict[str, Any]] = {}
    for name, entries in unknown.items():
        session.add(JournalFile(name=name))
        for entry in entries:
            row = session.get(JournalEntry, entry["id"])
            if row is None:
                missing[entry["id"]] = entry
                row = JournalEntry(id=entry["id"], kind=JournalKind(entry["kind"]), content=entry["content"])
                row.model_id, row.erasure_id = entry.get("model"), entry.get("erasure")
                row.size, row.at = len(entry.get("rows") or [0]), datetime.fromisoformat(entry["at"])
                session.add(row)
            row.file, row.written = name, False
    session.flush()
    return sorted(missing.values(), key=lambda entry: (entry["at"], entry["id"]))


def replay_changes(
    session: Session,
    missing: list[dict[str, Any]],
    request_id: str | None,
    heads: dict[int, int],
    done: Replayed,
) -> None:
    """Repeat removals, corrections and deletions of models, in order of time. `heads` are those before the replay."""
    by_model: dict[int, list[dict[str, Any]]] = {}
    for entry in missing:
        if entry.get("model") is not None:
            by_model.setdefault(entry["model"], []).append(entry)
    for model_id, entries in sorted(by_model.items()):
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:  # created after the backup
            continue
        deleted = [entry for entry in entries if entry["kind"] == JournalKind.MODEL_DELETED]
        if any(model.created_at <= datetime.fromisoformat(entry["at"]) for entry in deleted):
            done.models.append(model.name)
            delete_model(session, model)
            continue
        changes = ChangeReplay(session, model, entries, heads[model_id])
        for entry in entries:
            changes.repeat(entry)
        done.removals += changes.removed
        done.corrections += changes.corrected
        done.outdated += changes.outdated
        if changes.removed or changes.corrected or changes.outdated:
            queue.enqueue_adaptation(session, model, request_id)


def restore_suppressions(session: Session, missing: list[dict[str, Any]]) -> None:
    """Recognise people again whose erasure was completed after the backup."""
    for entry in missing:
        until = datetime.fromisoformat(entry["content"].get("until") or "1970-01-01T00:00:00Z")
        for hashed in entry["content"].get("suppressed", ()) if until > now() else ():
            if session.scalar(select(Suppression.id).where(Suppression.hash == hashed)) is None:
                session.add(Suppression(hash=hashed, expires_at=until))
                session.flush()
