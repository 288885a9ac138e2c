"""Leaves of the register, and receipts, that the store has and the database lacks after a restore from a backup."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.erasure import receipts
from core.errors import Conflict
from core.register import files, signed_tree, signing_keys
from core.register.records import ImportedLeaf, StoredEntry
from core.register.signing import Signer, is_signature, pae, previous_signer_of, signer_of
from core.tables.erasures import Receipt
from core.tables.register import RecordKind, SigningKey
from core.versions.store import Store


@dataclass
class RequestHistory:
    """What the missing leaves say about a request."""

    last: dict[RecordKind, Mapping[str, Any]] = field(default_factory=dict)
    """The last record of each kind."""
    tokens: list[str] = field(default_factory=list)
    """Of the person's identifiers."""
    decision: RecordKind | None = None
    """Whether the request was last held or approved, if it was."""

    def add(self, record: Mapping[str, Any]) -> None:
        kind = RecordKind(record["kind"])
        self.last[kind] = record
        if kind in (RecordKind.HELD, RecordKind.APPROVED):
            self.decision = kind
        if "subject_token" in record:
            new = (record["subject_token"], *record.get("alias_tokens", ()))
            self.tokens = list(dict.fromkeys((*self.tokens, *new)))

    def __contains__(self, kind: RecordKind) -> bool:
        return kind in self.last

    @property
    def begun(self) -> Mapping[str, Any] | None:
        """The last record that files the request."""
        return self.last.get(RecordKind.FILED) or self.last.get(RecordKind.RESTRICTED)

    @property
    def is_approved(self) -> bool:
        """Whether the request was approved, and not held again since."""
        return self.decision is RecordKind.APPROVED


def find_missing(session: Session, store: Store) -> list[StoredEntry]:
    """The leaves that the store has and the database lacks, in order. Raises Conflict if a file was damaged."""
    found: list[StoredEntry] = []
    index = signed_tree.size_of(session)
    while files.is_ahead(store, index):
        content = files.read_leaf(store, index)
        if not files.is_genuine(content, index):
            raise damaged(files.name_of(index))
        found.append(cast(StoredEntry, content))
        index += 1
    if found and store.exists(files.name_of(index)):
        raise damaged(files.name_of(index))
    return found


def damaged(name: str) -> Conflict:
    return Conflict("receipts_damaged", f"The file {name} in the store was altered. Restore it or move it away first.")


def records_of(missing: list[StoredEntry], kind: RecordKind) -> list[dict[str, Any]]:
    return [record for entry in missing if (record := entry["record"]) and record["kind"] == kind]


def by_request(missing: list[StoredEntry]) -> dict[str, RequestHistory]:
    """The records of each request."""
    found: dict[str, RequestHistory] = {}
    for entry in missing:
        if entry["record"] and "erasure" in entry["record"]:
            found.setdefault(entry["record"]["erasure"], RequestHistory()).add(entry["record"])
    return found


def import_leaves(session: Session, missing: list[StoredEntry], imported: Mapping[int, Receipt]) -> None:
    """Append missing leaves that directly follow those of the database, with their receipts."""
    head = signed_tree.lock(session)
    first = head["size"] if head else 0
    if not missing or missing[0]["leaf"] != first:
        return  # another replay was faster
    signer = signer_of(session.info["settings"])
    if signing_keys.current_key(session) is None and (oldest := oldest_signer(session, missing)) is not None:
        signing_keys.add(session, oldest.key_id, oldest.public_pem)
    signed_tree.append(session, [ImportedLeaf(entry) for entry in missing], first, signer)
    for record in records_of(missing, RecordKind.COMPLETED):
        session.add(imported[record["receipt"]])
    for entry in missing:
        record = entry["record"] or {}
        if record.get("kind") == RecordKind.KEY_ROTATED:
            signing_keys.replace(session, record["key_id"], record["public_key"], entry["leaf"], None)
    session.flush()


def oldest_signer(session: Session, missing: list[StoredEntry]) -> Signer | None:
    """The first key of a register that the database lacks completely; None if a key replaced it and the settings do not
    name it."""
    settings = session.info["settings"]
    rotations = records_of(missing, RecordKind.KEY_ROTATED)
    if not rotations:
        return signer_of(settings)
    previous = previous_signer_of(settings)
    announced = {record["key_id"] for record in rotations}
    return previous if previous is not None and previous.key_id not in announced else None


def read_receipt(session: Session, store: Store, record: Mapping[str, Any], missing: list[StoredEntry]) -> Receipt:
    """Read a receipt from the store. Raises Conflict if its file was altered, or signed with an unknown key."""
    number, name = record["receipt"], receipts.name_of(record["receipt"])
    content = files.read_file(store, name) or {}
    signer = signer_of(session.info["settings"])
    known = {signer.key_id: signer.public_pem}
    if (previous := previous_signer_of(session.info["settings"])) is not None:
        known[previous.key_id] = previous.public_pem
    known |= {key.key_id: key.public_key for key in session.scalars(select(SigningKey))}
    known |= {made["key_id"]: made["public_key"] for made in records_of(missing, RecordKind.KEY_ROTATED)}
    try:
        payload = base64.b64decode(content["payload"], validate=True)
        [signature] = content["signatures"]
        receipt = Receipt(
            number=number,
            erasure_id=record["erasure"],
            leaf=content["leaf"],
            payload=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            signature=signature["sig"],
            key_id=signature["keyid"],
            head=content["head"],
        )
        json.loads(payload)
        signed = is_signature(pae(receipts.PAYLOAD_TYPE, payload), receipt.signature, known[receipt.key_id])
    except (KeyError, TypeError, ValueError):
        raise damaged(name) from None
    if not signed or receipt.sha256 != record["statement"]:
        raise damaged(name)
    return receipt
