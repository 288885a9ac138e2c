"""Leaves that the store has and the database lacks, as after a restore from a backup.

Whoever can write to the store could add or alter files. Leaves are therefore imported only if heads that were signed
with a configured key include them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Conflict
from core.register import files, merkle, signed_tree, signing_keys
from core.register.records import Acknowledgement, ImportedLeaf
from core.register.signing import (
    LOST,
    Head,
    Signer,
    configured_keys,
    is_named,
    is_signed,
    previous_signer_of,
    signer_of,
)
from core.tables.register import RecordKind, SigningKey
from core.versions.store import Store


def find_missing(session: Session, store: Store) -> list[Acknowledgement]:
    """The missing leaves, in order. Raises Conflict if a file was damaged, or contains a leaf that nobody signed."""
    found: list[Acknowledgement] = []
    index = signed_tree.size_of(session)
    while files.is_ahead(store, index):
        content = files.read_leaf(store, index)
        if not files.is_genuine(content, index):
            raise damaged(files.name_of(index))
        found.append(cast(Acknowledgement, content))
        index += 1
    if found and store.exists(files.name_of(index)):
        raise damaged(files.name_of(index))
    require_proven(session, found)
    return found


def damaged(name: str) -> Conflict:
    return Conflict(
        "receipts_damaged",
        f"The file {name} in the store is missing or was altered. Restore it, or move it away, first.",
    )


def records_of(missing: Sequence[Acknowledgement], kind: RecordKind) -> list[dict[str, Any]]:
    return [record for entry in missing if (record := entry["record"]) and record["kind"] == kind]


def require_proven(session: Session, missing: Sequence[Acknowledgement]) -> None:
    """Raise Conflict unless signed heads include the missing leaves.

    The newest head for which no leaf is missing proves all leaves before it, those of the database included, whatever
    keys signed the heads in their files. Leaves after it, of which a process was killed before it had written the
    files of all, have a path to a newer head.
    """
    if not missing:
        return
    nodes = signed_tree.SubtreeReader(session)
    for entry in missing:
        leaf = merkle.hash_leaf(bytes.fromhex(entry["commitment"]))
        nodes.known.update({(level, i): value for level, i, value in merkle.grow(entry["leaf"], leaf, nodes)})
    size, proven, alone = missing[-1]["leaf"] + 1, 0, set[int]()
    for entry, head in with_signed_heads(session, missing):
        if head["size"] > size and is_included(entry, head):
            alone.add(entry["leaf"])
        elif head["size"] <= size and merkle.find_root(head["size"], nodes).hex() == head["root"]:
            proven = max(proven, head["size"])
        else:
            raise damaged(files.name_of(entry["leaf"]))
    for entry in missing:
        if entry["leaf"] >= proven and entry["leaf"] not in alone:
            raise damaged(files.name_of(entry["leaf"]))


def with_signed_heads(session: Session, missing: Sequence[Acknowledgement]) -> Iterator[tuple[Acknowledgement, Head]]:
    """The files whose head is signed with a configured key, or with one of the database if the old key was lost."""
    settings = session.info["settings"]
    keys = configured_keys(settings)
    if settings.signing_key_previous_file == LOST:
        others = [key for key in session.scalars(select(SigningKey)) if is_named(key.key_id, key.public_key)]
        keys = {key.key_id: key.public_key for key in others} | keys
    for entry in missing:
        head = entry.get("head")
        if isinstance(head, dict) and head.get("key_id") in keys and is_signed(head, keys[head["key_id"]]):
            yield entry, head


def is_included(entry: Acknowledgement, head: Head) -> bool:
    """Whether the path in a file leads to the root of its head."""
    try:
        leaf, path = merkle.hash_leaf(bytes.fromhex(entry["commitment"])), map(bytes.fromhex, entry["path"])
        return merkle.follow(leaf, entry["leaf"], head["size"], list(path)).hex() == head["root"]
    except (KeyError, TypeError, ValueError):
        return False


def append(session: Session, missing: Sequence[Acknowledgement]) -> bool:
    """Append missing leaves that directly follow those of the database; returns whether they do."""
    head = signed_tree.lock(session)
    first = head["size"] if head else 0
    if not missing or missing[0]["leaf"] != first:
        return False  # another replay was faster
    if signing_keys.current_key(session) is None and (oldest := oldest_signer(session, missing)) is not None:
        signing_keys.add(session, oldest.key_id, oldest.public_pem)
    signer, rotations = signer_of(session.info["settings"]), records_of(missing, RecordKind.KEY_ROTATED)
    replaced = [record["replaces"] for record in rotations if "replaces" in record]
    signed_tree.append(session, [ImportedLeaf(entry) for entry in missing], first, signer, replaced)
    for entry in missing:
        record = entry["record"] or {}
        if record.get("kind") == RecordKind.KEY_ROTATED:
            signing_keys.replace(session, record["key_id"], record["public_key"], entry["leaf"], None)
    return True


def oldest_signer(session: Session, missing: Sequence[Acknowledgement]) -> Signer | None:
    """The first key of a register that the database lacks completely; None if a key replaced it and the settings do not
    name it."""
    settings = session.info["settings"]
    rotations = records_of(missing, RecordKind.KEY_ROTATED)
    if not rotations:
        return signer_of(settings)
    previous = previous_signer_of(settings)
    announced = {record["key_id"] for record in rotations}
    return previous if previous is not None and previous.key_id not in announced else None
