"""Verification of receipts and requests: the database contains exactly what the register says about them."""

import hashlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.erasure import receipts
from core.register import files, verification
from core.register.log import all_records
from core.register.signing import is_signature, pae
from core.register.verification import Flaw
from core.tables.erasures import Erasure, ErasureState, Receipt
from core.tables.register import Leaf, RecordKind, SigningKey
from core.versions.store import Store


def verify(session: Session, store: Store) -> list[Flaw]:
    """All flaws of the register, of receipts and of requests; empty if everything is complete and unaltered."""
    records = all_records(session)
    found = [*verification.find_flaws(session, store), *check_receipts(session, store, records)]
    found += check_requests(session, records)
    return found


def check_receipts(session: Session, store: Store, records: dict[int, dict[str, Any]]) -> Iterator[Flaw]:
    """Check that each leaf `completed` has its receipt, with a valid signature and an unaltered file."""
    rows = {receipt.leaf: receipt for receipt in session.scalars(select(Receipt).order_by(Receipt.number))}
    keys = {key.key_id: key.public_key for key in session.scalars(select(SigningKey))}
    for index, record in records.items():
        if record["kind"] == RecordKind.COMPLETED and index not in rows:
            yield Flaw("missing: the register contains its leaf", index, record["receipt"])
    for index, receipt in rows.items():
        leaf, number = session.get(Leaf, index), receipt.number
        record = records.get(index, {})
        expired = leaf is not None and leaf.record is None
        sha256 = hashlib.sha256(receipt.payload).hexdigest()
        signed = pae(receipts.PAYLOAD_TYPE, receipt.payload)
        if receipt.key_id not in keys or not is_signature(signed, receipt.signature, keys[receipt.key_id]):
            yield Flaw("altered: its signature is invalid", index, number)
        if not expired and (record.get("statement"), record.get("receipt")) != (sha256, number):
            yield Flaw("invented or altered: the register does not contain it", index, number)
        if sha256 != receipt.sha256 or (not expired and record.get("erasure") != receipt.erasure_id):
            yield Flaw("altered: the database has another hash or erasure for it", index, number)
        content = files.read_file(store, receipts.name_of(number))
        if content != receipts.file_content(receipt) and (content is not None or (leaf and leaf.filed)):
            yield Flaw("missing or altered: its file in the store is not that of the database", index, number)


def check_requests(session: Session, records: dict[int, dict[str, Any]]) -> Iterator[Flaw]:
    """Check the requests against what the register recorded about them, as far as records have not expired."""
    history: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, record in records.items():
        if "erasure" in record:
            history.setdefault(record["erasure"], []).append((index, record))
    rows = {erasure.id: erasure for erasure in session.scalars(select(Erasure))}
    for id, entries in history.items():
        if id not in rows and entries[0][1]["kind"] == RecordKind.FILED and not was_replayed(records, id):
            yield Flaw(f"missing: the request {id} was filed", entries[0][0])
    known = set(session.scalars(select(Leaf.erasure_id).distinct()))
    for erasure in rows.values():
        if erasure.id not in known:
            yield Flaw(f"invented: the register does not contain the request {erasure.id}")
        elif erasure.id in history:
            yield from check_request(erasure, history[erasure.id])


def was_replayed(records: dict[int, dict[str, Any]], id: str) -> bool:
    """Whether the request was completed before a restore, so that only its receipt was imported."""
    kinds = {record["kind"] for record in records.values() if record.get("erasure") == id}
    return RecordKind.COMPLETED in kinds


def check_request(erasure: Erasure, entries: list[tuple[int, dict[str, Any]]]) -> Iterator[Flaw]:
    """Check one request against its records."""
    last = {record["kind"]: (index, record) for index, record in entries}
    index, filed = last.get(RecordKind.FILED, (None, None))
    if filed is not None:
        due = last[RecordKind.EXTENDED] if RecordKind.EXTENDED in last else last[RecordKind.FILED]
        newer = max((due, last[RecordKind.FILED]), key=lambda entry: entry[0])[1]
        if (filed["subject_token"], filed["received_at"]) != (erasure.token, utc_text(erasure.received_at)):
            yield Flaw(f"altered: the request {erasure.id} has another person or date of receipt", index)
        if newer["due_at"] != utc_text(erasure.due_at):
            yield Flaw(f"altered: the request {erasure.id} has another due date", index)
    for state, kind in ((ErasureState.REFUSED, RecordKind.REFUSED), (ErasureState.COMPLETED, RecordKind.COMPLETED)):
        if (erasure.state is state) != (kind in last) and filed is not None:
            yield Flaw(f"altered: the request {erasure.id} is {erasure.state}, unlike in the register", index)
    if RecordKind.REFUSED in last and last[RecordKind.REFUSED][1]["reason"] != erasure.refusal:
        yield Flaw(f"altered: the request {erasure.id} has another reason for its refusal", last[RecordKind.REFUSED][0])
    if RecordKind.COMPLETED in last and last[RecordKind.COMPLETED][1]["receipt"] != erasure.receipt:
        yield Flaw(f"altered: the request {erasure.id} has another receipt", last[RecordKind.COMPLETED][0])
