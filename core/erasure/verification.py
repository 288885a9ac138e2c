"""Verification of receipts and requests: the database contains exactly what the register says about them."""

import hashlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.erasure import receipts
from core.erasure.identifiers import token_of
from core.errors import Unavailable
from core.register import files, journal_files, verification
from core.register.log import all_records
from core.register.record_retention import cutoff
from core.register.signing import is_signature, pae
from core.register.verification import Flaw, is_past, is_same_time
from core.tables.erasures import OPEN, PENDING, RESTRICTIONS, UNENDED, Erasure, ErasureState, Identifier, Receipt
from core.tables.register import Leaf, RecordKind, SigningKey
from core.versions.store import Store

BEGINNINGS = (RecordKind.FILED, RecordKind.RESTRICTED)
"""Kinds of the first record of a request."""
ENDS = {
    ErasureState.REFUSED: RecordKind.REFUSED,
    ErasureState.WITHDRAWN: RecordKind.WITHDRAWN,
    ErasureState.COMPLETED: RecordKind.COMPLETED,
    ErasureState.LIFTED: RecordKind.LIFTED,
}
"""The record that belongs to each state in which a request has ended."""


def verify(session: Session, store: Store) -> list[Flaw]:
    """All flaws of the register, of receipts and of requests; empty if everything is complete and unaltered."""
    records = all_records(session)
    found = [*verification.find_flaws(session, store)]
    try:
        found += [*check_receipts(session, store, records), *check_requests(session, records)]
    except (KeyError, TypeError):
        found.append(Flaw("invented: a record of the register lacks fields that Amend writes"))
    return found


def find_strays(session: Session, store: Store) -> list[str]:
    """The names of files of the register and the journal that Amend did not write. They have no effect."""
    _, strays = journal_files.find_unknown(session, store)
    return sorted([*files.find_strays(session, store), *strays])


def check_receipts(session: Session, store: Store, records: dict[int, dict[str, Any]]) -> Iterator[Flaw]:
    """Check that each leaf `completed` has its receipt, with a valid signature and an unaltered file."""
    rows = {receipt.leaf: receipt for receipt in session.scalars(select(Receipt).order_by(Receipt.number))}
    keys = {key.key_id: key.public_key for key in session.scalars(select(SigningKey))}
    expired_before = cutoff(session.info["settings"])
    for index, record in records.items():
        if record["kind"] == RecordKind.COMPLETED and index not in rows:
            yield Flaw("missing: the register contains its leaf", index, record["receipt"])
    for index, receipt in rows.items():
        leaf, number = session.get(Leaf, index), receipt.number
        record = records.get(index, {})
        expired = leaf is not None and leaf.record is None
        if expired and expired_before is not None and not is_past(completed_at(receipt), expired_before):
            yield Flaw("altered: its record was deleted before the end of the retention period", index, number)
        sha256 = hashlib.sha256(receipt.payload).hexdigest()
        signed = pae(receipts.PAYLOAD_TYPE, receipt.payload)
        if receipt.key_id not in keys or not is_signature(signed, receipt.signature, keys[receipt.key_id]):
            yield Flaw("altered: its signature is invalid", index, number)
        if not expired and (record.get("statement"), record.get("receipt")) != (sha256, number):
            yield Flaw("invented or altered: the register does not contain it", index, number)
        if sha256 != receipt.sha256 or (not expired and record.get("erasure") != receipt.erasure_id):
            yield Flaw("altered: the database has a different hash or erasure for it", index, number)
        if not is_head_of_register(session, receipt):
            yield Flaw("altered: its head is not one of the register", index, number)
        content = files.read_file(store, receipts.name_of(number))
        if content != receipts.file_content(receipt) and (content is not None or (leaf and leaf.filed)):
            yield Flaw("missing or altered: its file in the store differs from the database", index, number)


def is_head_of_register(session: Session, receipt: Receipt) -> bool:
    """Whether the register extends the head that was signed with a receipt."""
    try:
        size, root = receipt.head["size"], receipt.head["root"]
        return receipt.leaf < size and not any(verification.check_older_head(session, size, root))
    except (KeyError, TypeError, Unavailable):
        return False


def completed_at(receipt: Receipt) -> str:
    """When the erasure of a receipt was completed, as its statement says; empty if the statement was altered."""
    try:
        return str(receipts.read_statement(receipt)["predicate"]["completed_at"])
    except (KeyError, TypeError, ValueError):
        return ""


def check_requests(session: Session, records: dict[int, dict[str, Any]]) -> Iterator[Flaw]:
    """Check the requests against what the register recorded about them, as far as records have not expired."""
    history: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, record in records.items():
        if "erasure" in record:
            history.setdefault(record["erasure"], []).append((index, record))
    rows = {erasure.id: erasure for erasure in session.scalars(select(Erasure))}
    for id, entries in history.items():
        if id not in rows and entries[0][1]["kind"] in BEGINNINGS:
            yield Flaw(f"missing: the request {id} was filed", entries[0][0])
    known = set(session.scalars(select(Leaf.erasure_id).distinct()))
    for index, owner in session.execute(select(Leaf.index, Leaf.erasure_id).order_by(Leaf.index)):
        if index in records and records[index].get("erasure") != owner:
            yield Flaw("altered: the database assigns it to another request than its record", index)
    for erasure in rows.values():
        if erasure.id not in known:
            yield Flaw(f"invented: the register does not contain the request {erasure.id}")
        elif erasure.id in history:
            yield from check_request(erasure, history[erasure.id])
            yield from check_identifiers(session, erasure, history[erasure.id])


def check_identifiers(session: Session, erasure: Erasure, entries: list[tuple[int, dict[str, Any]]]) -> Iterator[Flaw]:
    """Check that a request has the identifiers that were filed, and, while it is open, no others."""
    filings = [record for _, record in entries if record["kind"] in BEGINNINGS]
    filed = {token for record in filings for token in (record["subject_token"], *record.get("alias_tokens", []))}
    stored = session.scalars(select(Identifier).where(Identifier.erasure_id == erasure.id)).all()
    tokens, secret = {one.token for one in stored}, session.info["settings"].secret
    exchanged = any(one.subject is not None and token_of(one.subject, secret) != one.token for one in stored)
    lost = erasure.state in UNENDED and any(one.subject is None for one in stored)
    # records of ended requests expire one by one
    if exchanged or lost or not filed <= tokens or (erasure.state in UNENDED and filed != tokens):
        yield Flaw(f"altered: the request {erasure.id} has other identifiers of the person", entries[0][0])


def check_request(erasure: Erasure, entries: list[tuple[int, dict[str, Any]]]) -> Iterator[Flaw]:
    """Check one request against its records."""
    last = {record["kind"]: (index, record) for index, record in entries}
    begun = RecordKind.RESTRICTED if erasure.state in RESTRICTIONS else RecordKind.FILED
    index, filed = last.get(begun, (None, None))
    if filed is not None:
        due = last[RecordKind.EXTENDED] if RecordKind.EXTENDED in last else last[begun]
        newer = max((due, last[begun]), key=lambda entry: entry[0])[1]
        if (filed["subject_token"], filed["received_at"]) != (erasure.token, utc_text(erasure.received_at)):
            yield Flaw(f"altered: the request {erasure.id} has a different person or date of receipt", index)
        if newer["due_at"] != utc_text(erasure.due_at):
            yield Flaw(f"altered: the request {erasure.id} has a different due date", index)
    for state, kind in ENDS.items():
        if (erasure.state is state) != (kind in last) and filed is not None:
            yield Flaw(
                f"altered: the request {erasure.id} has the state {erasure.state}, unlike in the register", index
            )
        ended, recorded = erasure.completed_at, last[kind][1]["at"] if kind in last else ""
        if erasure.state is state and recorded and (ended is None or not is_same_time(ended, recorded)):
            yield Flaw(f"altered: the request {erasure.id} has a different time of its end", last[kind][0])
    decided = max(last.get(kind, (-1, None))[0] for kind in (RecordKind.HELD, RecordKind.APPROVED))
    held = RecordKind.HELD in last and last[RecordKind.HELD][0] == decided
    if erasure.state in OPEN and held:
        yield Flaw(f"altered: the request {erasure.id} is {erasure.state}, but nobody has approved it", decided)
    if (erasure.state is ErasureState.HELD and not held) or (erasure.state is ErasureState.UNMATCHED and decided >= 0):
        yield Flaw(f"altered: the request {erasure.id} is {erasure.state}, unlike in the register", index)
    place, extended = last.get(RecordKind.EXTENDED, (index, {}))
    reason = None if erasure.extension is None else hashlib.sha256(erasure.extension.encode()).hexdigest()
    if erasure.state in PENDING and reason != extended.get("reason_sha256"):
        yield Flaw(f"altered: the request {erasure.id} has a different reason for its extension", place)
    for kind, name, stored in (
        (RecordKind.REFUSED, "reason", erasure.refusal),
        (RecordKind.COMPLETED, "receipt", erasure.receipt),
    ):
        place, record = last.get(kind, (index, {}))
        if (kind in last or filed is not None) and record.get(name) != stored:
            yield Flaw(f"altered: the request {erasure.id} has a different {name} than in the register", place)
