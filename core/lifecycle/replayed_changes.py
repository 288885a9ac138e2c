"""Repeating removals and corrections of one model's examples after a restore."""

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.ledger.batch import Batch
from core.ledger.corrections import replace_examples
from core.ledger.journal import hash_name
from core.ledger.queries import batched
from core.ledger.removal_selections import remove_named
from core.ledger.restrictions import restricted_by
from core.ledger.spec_history import layout_at
from core.suppressions import Screen
from core.tables.erasures import WAITING
from core.tables.journal import JournalEntry, JournalKind
from core.tables.ledger import HAS_CONTENT, Change, Example, PendingExample
from core.tables.models import Model


class ChangeReplay:
    """Repeats entries of the journal, in the locked ledger of a model.

    `head` is the last position before the replay. Examples that arrived after the restore, and only those, are newer
    than an entry: they are left alone, even if they have an id that was removed before.
    """

    def __init__(self, session: Session, model: Model, entries: Sequence[dict[str, Any]], head: int) -> None:
        self.session, self.model, self.head = session, model, head
        self.secret = session.info["settings"].secret
        self.removed = self.corrected = self.outdated = 0
        wanted = {hashed for entry in entries for hashed in entry["content"].get("id", ())}
        corrections = [entry for entry in entries if entry["kind"] == JournalKind.CORRECTED]
        self.last = {hashed: entry["id"] for entry in corrections for hashed in entry["content"]["id"]}
        """Id of the entry with the last correction of each example: earlier ones were replaced, and may be deleted."""
        self.ids = self.find_names(wanted, Example.id, PendingExample.id)

    def find_names(self, wanted: set[str], *columns: Any) -> dict[str, Any]:
        """The ids, subjects or sources in the database that have the given hashes."""
        found: dict[str, Any] = {}
        for column in columns if wanted else ():
            query = select(column).where(column.class_.model_id == self.model.id, column.is_not(None)).distinct()
            for name in self.session.scalars(query.execution_options(yield_per=10_000)):
                if (hashed := hash_name(self.secret, self.model.id, name)) in wanted:
                    found[hashed] = name
        return found

    def repeat(self, entry: dict[str, Any]) -> None:
        at = datetime.fromisoformat(entry["at"])
        if entry["kind"] == JournalKind.REMOVED:
            self.removed += self.remove(self.select_removed(entry["content"], at))
        elif entry["kind"] == JournalKind.CORRECTED:
            self.correct(entry, at)

    def horizon(self, at: datetime) -> int:
        """The last position that was taken before a time."""
        taken = select(func.max(Change.last)).where(Change.model_id == self.model.id, Change.created_at <= at)
        return self.session.scalar(taken) or 0

    def is_older(self, at: datetime) -> ColumnElement[bool]:
        """Condition on examples: stored before a time, or by this replay."""
        return sa.or_(Example.position <= self.horizon(at), Example.position > self.head)

    def select_removed(self, content: dict[str, Any], at: datetime) -> list[str]:
        """Ids of the examples that an entry removed, and that are still there."""
        if "positions" in content:
            first, last = content["positions"]
            span = Example.position.between(first, min(last, self.head))
            return [*self.select_ids(at, span, None), *self.select_known(content["id"], at)]
        if "id" in content:
            return self.select_known(content["id"], at)
        by = "subject" if "subject" in content else "source"
        names = list(self.find_names(set(content[by]), getattr(Example, by), getattr(PendingExample, by)).values())
        return self.select_ids(at, getattr(Example, by).in_(names), getattr(PendingExample, by).in_(names))

    def select_known(self, hashes: Sequence[str], at: datetime) -> list[str]:
        found: list[str] = []
        for some in batched([self.ids[hashed] for hashed in hashes if hashed in self.ids]):
            found += self.select_ids(at, Example.id.in_(some), PendingExample.id.in_(some))
        return found

    def select_ids(self, at: datetime, stored: ColumnElement[bool], pending: ColumnElement[bool] | None) -> list[str]:
        """Ids of examples that were there at a time: in force, in quarantine, held by a request, or unlabelled."""
        restricted = sa.bindparam(
            "restricted",
            restricted_by(self.session, self.model.id, WAITING),
            sa.BigInteger,
            expanding=True,
            literal_execute=True,
        )
        there = sa.or_(Example.removed.is_(None), Example.quarantine.is_not(None), Example.position.in_(restricted))
        ours = (Example.model_id == self.model.id, HAS_CONTENT, there, self.is_older(at))
        found = list(self.session.scalars(select(Example.id).where(*ours, stored)))
        if pending is not None:
            waiting = (PendingExample.model_id == self.model.id, PendingExample.created_at <= at, pending)
            found += self.session.scalars(select(PendingExample.id).where(*waiting))
        return list(dict.fromkeys(found))

    def remove(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        return remove_named(self.session, self.model, Example.id, ids, ids).removal.removed

    def correct(self, entry: dict[str, Any], at: datetime) -> None:
        """Correct examples again; those whose new content is unknown, or has another layout, are removed instead."""
        hashes, rows, layout = entry["content"]["id"], entry["rows"], entry["content"]["layout"]
        same = layout == self.model.layout_position and layout <= self.horizon(at)
        found: dict[str, Any] = {}
        for hashed, row in zip(hashes, rows, strict=True):
            if hashed in self.ids and self.last[hashed] == entry["id"]:
                found[self.ids[hashed]] = row
        there = set(self.select_in_force(list(found), at))
        new = {id: row for id, row in found.items() if id in there and row is not None and same}
        self.outdated += self.remove([id for id in there if id not in new])
        if new:
            self.corrected += self.replace(new)
        self.note_positions(entry["id"], [self.ids.get(hashed) for hashed in hashes], set(new))

    def select_in_force(self, ids: Sequence[str], at: datetime) -> list[str]:
        found: list[str] = []
        for some in batched(ids):
            ours = (Example.model_id == self.model.id, Example.removed.is_(None), self.is_older(at))
            found += self.session.scalars(select(Example.id).where(*ours, Example.id.in_(some)))
        return found

    def replace(self, new: dict[str, dict[str, Any]]) -> int:
        rows, layout = list(new.values()), layout_at(self.session, self.model.id, self.model.head)
        # a row is newer than the last change of the layout that it was stored in
        at = np.full(len(rows), self.model.layout_position + 1)
        contents = [base64.b64decode(row["x"]) for row in rows]
        y, x, unseen = layout.convert(at, np.array([row["y"] for row in rows]), contents, [r["unseen"] for r in rows])
        subjects = [None if row["subject"] is None else bytes.fromhex(row["subject"]) for row in rows]
        weights = np.array([1.0 if row["weight"] is None else row["weight"] for row in rows])
        times = [None if row["time"] is None else np.datetime64(row["time"].removesuffix("Z"), "us") for row in rows]
        batch = Batch(
            ids=pa.array(list(new), pa.string()),
            subjects=subjects,
            x=x,
            y=y,
            splits=[row["holdout"] for row in rows],
            layout_position=self.model.layout_position,
            weights=weights,
            times=np.array(["NaT" if time is None else time for time in times], "M8[us]"),
            sources=[row["source"] for row in rows],
            unseen=unseen,
        )
        return replace_examples(self.session, self.model, batch, Screen(self.session.info["settings"])).replaced

    def note_positions(self, entry_id: str, ids: Sequence[str | None], corrected: set[str]) -> None:
        """Record where the corrected examples are now, so that an erasure finds their contents in the journal."""
        positions: dict[str, int] = {}
        for some in batched(sorted(corrected)):
            ours = (Example.model_id == self.model.id, Example.id.in_(some), Example.position > self.head)
            query = select(Example.id, Example.position).where(*ours).order_by(Example.position)
            positions.update((id, at) for id, at in self.session.execute(query))
        entry = self.session.get_one(JournalEntry, entry_id)
        entry.positions = [None if id is None else positions.get(id) for id in ids]
        entry.first, entry.last = min(positions.values(), default=None), max(positions.values(), default=None)
