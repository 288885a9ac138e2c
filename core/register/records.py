"""Records: what a leaf of the register commits to, with a random salt, so that the record can be deleted later."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from core.clock import now
from core.database import utc_text
from core.register.signing import Head
from core.tables.keys import Key
from core.tables.register import Leaf, RecordKind

SYSTEM = "amend"
"""The actor of what Amend does by itself."""
VERSION = 1
"""Version of the format."""
EXPIRED = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of leaves whose record had expired before a restore."""


def canonical(record: Mapping[str, Any]) -> str:
    """A record as the text that is hashed. Records contain no floats, whose text is ambiguous.

    >>> canonical({"v": 1, "kind": "filed"})
    '{"kind":"filed","v":1}'
    """
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def commit(salt: bytes, text: str) -> bytes:
    """The commitment to a canonical record."""
    return hashlib.sha256(salt + text.encode()).digest()


@dataclass
class PendingLeaf:
    """A leaf that the current transaction appends when it ends. Subclasses add to it while the register is locked."""

    record: dict[str, Any]
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    expired = False

    @property
    def created_at(self) -> datetime:
        """When the leaf was made, which determines when its record expires."""
        return now()

    @property
    def commitment(self) -> bytes:
        return commit(self.salt, canonical(self.record))

    def before_append(self, session: Session) -> None:
        """Complete the record."""

    def after_append(self, session: Session, index: int, head: Head) -> None:
        """Store what depends on the leaf's index or on the signed head that includes it."""


def new_record(session: Session, kind: RecordKind, by: str, **fields: Any) -> dict[str, Any]:
    """A record of something that happens now; fields that are None are left out. `by` is the id of an API key."""
    key = session.get(Key, by) if by != SYSTEM else None
    given = {name: value for name, value in fields.items() if value is not None}
    actor = {"id": by, "name": key.name if key else None}
    return {"v": VERSION, "kind": kind.value, "at": utc_text(now()), "actor": actor, **given}


class StoredEntry(TypedDict):
    """A leaf, as in its file. Record and salt are null after the retention period."""

    leaf: int
    record: dict[str, Any] | None
    salt: str | None
    commitment: str


def stored_entry(leaf: Leaf) -> StoredEntry:
    return StoredEntry(
        leaf=leaf.index,
        record=json.loads(leaf.record) if leaf.record is not None else None,
        salt=leaf.salt.hex() if leaf.salt is not None else None,
        commitment=leaf.commitment.hex(),
    )


class Entry(StoredEntry):
    """A leaf with its inclusion proof for a given size of the register."""

    path: list[str]


class Acknowledgement(Entry):
    """A leaf with its inclusion proof for a signed head."""

    head: Head


class ImportedLeaf(PendingLeaf):
    """A leaf of the store that the database lost; its record may have expired."""

    def __init__(self, entry: StoredEntry) -> None:
        super().__init__(entry["record"] or {}, bytes.fromhex(entry["salt"] or ""))
        self.expired = entry["record"] is None
        self.made = bytes.fromhex(entry["commitment"])

    @property
    def created_at(self) -> datetime:
        """The time of the record; of an expired one, only its age is known."""
        return datetime.fromisoformat(self.record["at"]) if self.record else EXPIRED

    @property
    def commitment(self) -> bytes:
        return self.made
