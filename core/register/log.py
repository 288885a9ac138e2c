"""Appending to the register and reading its entries.

`record` queues a leaf; it is appended at the end of the transaction, so that the register's lock is always the last
lock that a transaction takes. A leaf therefore exists exactly if the action that it records was committed.
"""

import json
from collections.abc import Sequence
from typing import Any, TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import run_before_commit
from core.register import keys, tree
from core.register.records import PendingLeaf, new_record
from core.register.signing import Head, signer_of
from core.tables.register import Leaf, RecordKind

QUEUE = "register_queue"


class StoredEntry(TypedDict):
    """A leaf, as in its file. Record and salt are null after the retention period."""

    leaf: int
    record: dict[str, Any] | None
    salt: str | None
    commitment: str


class Entry(StoredEntry):
    """A leaf with its inclusion proof for a given size of the register."""

    path: list[str]


class Acknowledgement(Entry):
    """A leaf with its inclusion proof for a signed head."""

    head: Head


def record(
    session: Session,
    kind: RecordKind,
    by: str,
    erasure: str | None = None,
    **fields: Any,
) -> PendingLeaf:
    """Append a leaf at the end of this transaction."""
    leaf = PendingLeaf(new_record(session, kind, by, erasure=erasure, **fields))
    enqueue(session, leaf)
    return leaf


def enqueue(session: Session, leaf: PendingLeaf) -> None:
    session.info.setdefault(QUEUE, []).append(leaf)
    run_before_commit(session, write_pending)


def pending(session: Session) -> list[PendingLeaf]:
    """The leaves that this transaction will append."""
    return list(session.info.get(QUEUE, ()))


def write_pending(session: Session) -> Head | None:
    """Append the queued leaves and sign the new head. Takes the register's lock: nothing may be locked after this."""
    leaves: list[PendingLeaf] = session.info.pop(QUEUE, [])
    if not leaves:
        return None
    session.flush()
    signer = signer_of(session.info["settings"])
    head = tree.lock(session)
    if keys.is_due(session, signer):
        head = keys.rotate(session, signer, head)
    first = head["size"] if head else 0
    for leaf in leaves:
        leaf.before_append(session)
    head = tree.append(session, leaves, first, signer)
    for index, leaf in enumerate(leaves, first):
        leaf.after_append(session, index, head)
    session.flush()
    return head


def stored_entry(leaf: Leaf) -> StoredEntry:
    return StoredEntry(
        leaf=leaf.index,
        record=json.loads(leaf.record) if leaf.record is not None else None,
        salt=leaf.salt.hex() if leaf.salt is not None else None,
        commitment=leaf.commitment.hex(),
    )


def entry(session: Session, leaf: Leaf, size: int) -> Entry:
    """A leaf with its inclusion proof in the register of `size` leaves."""
    return Entry(**stored_entry(leaf), path=tree.prove_inclusion(session, leaf.index, size))


def acknowledge(session: Session, leaf: Leaf) -> Acknowledgement:
    """A leaf with its inclusion proof and the newest signed head."""
    head = tree.current_head(session)
    return Acknowledgement(**entry(session, leaf, head["size"]), head=head)


def leaves_of(session: Session, erasure_id: str) -> Sequence[Leaf]:
    """The leaves of an erasure, in order."""
    return session.scalars(select(Leaf).where(Leaf.erasure_id == erasure_id).order_by(Leaf.index)).all()


def records_of(session: Session, erasure_id: str) -> list[dict[str, Any]]:
    """The records of an erasure that have not expired, in order, including those of this transaction."""
    stored = [json.loads(leaf.record) for leaf in leaves_of(session, erasure_id) if leaf.record is not None]
    return stored + [leaf.record for leaf in pending(session) if leaf.record.get("erasure") == erasure_id]


def first_commitment(session: Session, erasure_id: str) -> bytes:
    """The commitment of the first leaf of an erasure, which records that it was filed."""
    first = session.scalar(
        select(Leaf.commitment).where(Leaf.erasure_id == erasure_id).order_by(Leaf.index).limit(1)
    )
    ours = (leaf.commitment for leaf in pending(session) if leaf.record.get("erasure") == erasure_id)
    return first if first is not None else next(ours)
