"""Appending to the register and reading its entries.

`record` queues a leaf; it is appended at the end of the transaction, so that the register's lock is always the last
lock that a transaction takes. A leaf therefore exists exactly if the action that it records was committed.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.database import run_before_commit
from core.ledger.queries import batched
from core.register import files, signed_tree, signing_keys
from core.register.records import Acknowledgement, Entry, PendingLeaf, commit, new_record, stored_entry
from core.register.signing import Head, signer_of
from core.tables.register import Leaf, RecordKind
from core.versions.store import Store

QUEUE = "register_queue"


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
    """Append the queued leaves and sign the new head. Takes the register's lock: nothing may be locked after this.

    Raises Unavailable if the store has leaves that the database lacks.
    """
    leaves: list[PendingLeaf] = session.info.pop(QUEUE, [])
    if not leaves:
        return None
    session.flush()
    settings = session.info["settings"]
    signer = signer_of(settings)
    head = signed_tree.lock(session)
    files.require_same(session, Store(settings.artifacts))
    if signing_keys.is_due(session, signer):
        head = signing_keys.rotate(session, signer, head)
    first = head["size"] if head else 0
    for leaf in leaves:
        leaf.before_append(session)
    head = signed_tree.append(session, leaves, first, signer)
    for index, leaf in enumerate(leaves, first):
        leaf.after_append(session, index, head)
    session.flush()
    session.info["register_grew"] = True
    return head


def entry(session: Session, leaf: Leaf, size: int) -> Entry:
    """A leaf with its inclusion proof in the register of `size` leaves."""
    return Entry(**stored_entry(leaf), path=signed_tree.prove_inclusion(session, leaf.index, size))


def acknowledge_filings(session: Session, erasure_ids: Sequence[str]) -> dict[str, Acknowledgement]:
    """Acknowledgements of the last filing of each erasure, by its id."""
    found: dict[str, Leaf] = {}
    for some in batched(erasure_ids):
        for leaf in session.scalars(select(Leaf).where(Leaf.erasure_id.in_(some)).order_by(Leaf.index)):
            if leaf.erasure_id is not None and leaf.record and json.loads(leaf.record)["kind"] == RecordKind.FILED:
                found[leaf.erasure_id] = leaf
    head, nodes = signed_tree.current_head(session), signed_tree.SubtreeReader(session)
    return {id: signed_tree.acknowledge(leaf, head, nodes) for id, leaf in found.items()}


def leaves_of(session: Session, erasure_id: str) -> Sequence[Leaf]:
    """The leaves of an erasure, in order."""
    return session.scalars(select(Leaf).where(Leaf.erasure_id == erasure_id).order_by(Leaf.index)).all()


def records_of(session: Session, erasure_id: str) -> list[dict[str, Any]]:
    """The records of an erasure that have not expired, in order, including those of this transaction."""
    return records_by_erasure(session, [erasure_id])[erasure_id]


def records_by_erasure(session: Session, erasure_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The same for several erasures, by their ids."""
    found: dict[str, list[dict[str, Any]]] = {id: [] for id in erasure_ids}
    for some in batched(erasure_ids):
        stored = select(Leaf.erasure_id, Leaf.record).where(Leaf.erasure_id.in_(some), Leaf.record.is_not(None))
        for id, record in session.execute(stored.order_by(Leaf.index)):
            if id is not None and record is not None:
                found[id].append(json.loads(record))
    for leaf in pending(session):
        if (id := leaf.record.get("erasure")) in found:
            found[id].append(leaf.record)
    return found


def all_records(session: Session) -> dict[int, dict[str, Any]]:
    """All records that have not expired, by the index of their leaf; without altered ones, which verification reports
    by their commitments."""
    columns = select(Leaf.index, Leaf.salt, Leaf.record, Leaf.commitment).where(Leaf.record.is_not(None))
    records: dict[int, dict[str, Any]] = {}
    for index, salt, text, commitment in session.execute(columns.order_by(Leaf.index)):
        try:
            record = json.loads(text or "") if commit(salt or b"", text or "") == commitment else None
        except ValueError:  # of an invented leaf
            continue
        if isinstance(record, dict) and "kind" in record:
            records[index] = record
    return records


def find_exports(session: Session, tokens: Sequence[str]) -> list[str]:
    """When the data of the person with these tokens was exported, in order; records of it may have expired."""
    of_person = (Leaf.record.like(f'%"subject_token":"{token}"%') for token in tokens)
    exported = (Leaf.erasure_id.is_(None), Leaf.record.like(f'%"kind":"{RecordKind.EXPORTED}"%'), or_(*of_person))
    records = session.scalars(select(Leaf.record).where(*exported).order_by(Leaf.index))
    return [json.loads(record)["at"] for record in records if record]


def first_commitment(session: Session, erasure_id: str) -> bytes:
    """The commitment of the first leaf of an erasure, which records that it was filed."""
    first = session.scalar(select(Leaf.commitment).where(Leaf.erasure_id == erasure_id).order_by(Leaf.index).limit(1))
    ours = (leaf.commitment for leaf in pending(session) if leaf.record.get("erasure") == erasure_id)
    return first if first is not None else next(ours)
