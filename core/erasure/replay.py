"""Repeating erasures after a restore from a backup: those whose leaves are in the store but not in the database."""

import base64
import hashlib
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.erasure import receipts
from core.erasure.decisions import approve
from core.erasure.queries import all_subjects
from core.erasure.requests import receive
from core.erasure.states import RequestDetails, token_of
from core.errors import Conflict
from core.register import files, keys, log, tree
from core.register.records import ImportedLeaf, StoredEntry, canonical, commit
from core.register.signing import signer_of
from core.tables.erasures import ErasureState, Receipt
from core.tables.register import Leaf, RecordKind
from core.versions.store import Store


def replay(
    session: Session, store: Store, secret: bytes, requested_by: str, request_id: str | None
) -> tuple[int, list[str]]:
    """Import the missing leaves and receipts, and file their erasures again.

    Returns the number of missing receipts and the ids of the new erasures. A record names nobody, so the token of each
    person in the database is compared with it. Call this before the workers run: a leaf that they write first would
    take the place of a missing one.
    """
    missing = find_missing(session, store)
    completed = [record for found in missing if (record := found["record"]) and record["kind"] == RecordKind.COMPLETED]
    wanted = {str(record["subject_token"]): record for record in completed}
    begun: list[str] = []
    for subject in all_subjects(session) if wanted else []:
        record = wanted.get(token_of(subject, secret))
        if record is None:
            continue
        filing = RequestDetails(subject, "repeated after a restore from a backup")
        erasure = receive(session, filing, secret, requested_by, request_id)
        log.record(
            session, RecordKind.REPLAYED, requested_by, erasure.id, of=record["erasure"], receipt=record["receipt"]
        )
        begun.append(erasure.id)
        if erasure.state is ErasureState.HELD:  # it was approved after the backup
            approve(session, erasure, requested_by)
    import_leaves(session, store, missing)  # last, because it locks the register; the leaves from above follow
    return len(completed), begun


def find_missing(session: Session, store: Store) -> list[StoredEntry]:
    """The leaves that the store has and the database lacks, in order. Raises Conflict if a file was altered."""
    known = set(session.scalars(select(Leaf.commitment)))
    found = []
    for index, name in sorted(files.list_files(store).items()):
        content = files.read_file(store, name) or {}
        if not is_genuine(content, index):
            message = f"The file {name} in the store was altered. Restore it first."
            raise Conflict("receipts_damaged", message)
        if bytes.fromhex(content["commitment"]) not in known:
            found.append(cast(StoredEntry, content))
    return found


def is_genuine(content: dict[str, Any], index: int) -> bool:
    """Whether the content of a leaf's file is complete and matches its commitment."""
    try:
        if content["leaf"] != index or len(bytes.fromhex(content["commitment"])) != hashlib.sha256().digest_size:
            return False
        if content["record"] is None:  # it has expired
            return bool(content["salt"] is None)
        made = commit(bytes.fromhex(content["salt"]), canonical(content["record"]))
        return bool(made.hex() == content["commitment"])
    except (KeyError, TypeError, ValueError):
        return False


def import_leaves(session: Session, store: Store, missing: list[StoredEntry]) -> None:
    """Append missing leaves that directly follow those of the database, with their receipts."""
    head = tree.lock(session)
    first = head["size"] if head else 0
    if not missing or [entry["leaf"] for entry in missing] != list(range(first, first + len(missing))):
        return  # the database has other leaves in their place
    signer = signer_of(session.info["settings"])
    if keys.current_key(session) is None:
        keys.add(session, signer.key_id, signer.public_pem)
    tree.append(session, [ImportedLeaf(entry) for entry in missing], first, signer)
    for entry in missing:
        record = entry["record"] or {}
        if record.get("kind") == RecordKind.COMPLETED:
            import_receipt(session, store, record)
        if record.get("kind") == RecordKind.KEY_ROTATED:
            keys.replace(session, record["key_id"], record["public_key"], entry["leaf"], None)


def import_receipt(session: Session, store: Store, record: dict[str, Any]) -> None:
    """Import a receipt from the store. Raises Conflict if its file was altered."""
    number, name = record["receipt"], receipts.name_of(record["receipt"])
    content = files.read_file(store, name) or {}
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
    except (KeyError, TypeError, ValueError):
        receipt = None
    if receipt is None or receipt.sha256 != record["statement"]:
        raise Conflict("receipts_damaged", f"The file {name} in the store was altered. Restore it first.")
    session.add(receipt)
    session.flush()
