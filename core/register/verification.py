"""Verification of the stored register: its leaves, tree, signed head and files agree with each other.

Whoever holds an older signed head can also check that today's register extends it (`check_older_head`). Only that
reveals a register that was truncated or rebuilt together with its files.
"""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.register import files, merkle, signed_tree
from core.register.record_retention import cutoff
from core.register.records import StoredEntry, commit, stored_entry
from core.register.signing import LOST, configured_keys, is_named, is_signed
from core.tables.register import Leaf, Node, RecordKind, SigningKey
from core.versions.store import Store

CLOCK_DIFFERENCE = timedelta(hours=1)
"""How far the clocks of processes may differ."""


Tree = dict[tuple[int, int], bytes]
"""Hashes of complete subtrees, by level and index."""


@dataclass(frozen=True)
class Flaw:
    """Something that contradicts the register."""

    problem: str
    leaf: int | None = None
    receipt: int | None = None


def find_flaws(session: Session, store: Store) -> Iterator[Flaw]:
    """The flaws of the register in the database, and of its files compared with it."""
    leaves = session.scalars(select(Leaf).order_by(Leaf.index)).all()
    yield from check_leaves(session, leaves)
    nodes = grow_tree(leaves)
    yield from check_tree(session, leaves, nodes)
    yield from check_keys(session, leaves)
    strays = set(files.find_strays(session, store))
    yield from check_files(leaves, store, strays, nodes)


def check_leaves(session: Session, leaves: Sequence[Leaf]) -> Iterator[Flaw]:
    """Check that no leaf is missing, and that records match their commitments and were not deleted early."""
    present = {leaf.index for leaf in leaves}
    expected = max(signed_tree.size_of(session), max(present, default=-1) + 1)
    yield from (Flaw("missing: the database has no such leaf", i) for i in range(expected) if i not in present)
    expired_before, latest = cutoff(session.info["settings"]), ""
    for leaf in leaves:
        if leaf.record is not None and commit(leaf.salt or b"", leaf.record) != leaf.commitment:
            yield Flaw("altered: its record does not match its commitment", leaf.index)
        # no commitment covers the time in the database, but the records of earlier leaves show how old it can be
        latest = max(latest, at := str(read_record(leaf).get("at", "")))
        if at and not is_same_time(leaf.created_at, at):
            yield Flaw("altered: its time, with which its record expires, differs from its record", leaf.index)
        young = expired_before is None or leaf.created_at >= expired_before or not is_past(latest, expired_before)
        if leaf.record is None and young:
            yield Flaw("altered: its record was deleted before the end of the retention period", leaf.index)


def is_same_time(stored: datetime, recorded: str) -> bool:
    """Whether the database and the register state the same time, apart from the duration of a transaction."""
    try:
        return abs(stored - datetime.fromisoformat(recorded)) < CLOCK_DIFFERENCE
    except (TypeError, ValueError):
        return False


def is_past(time: str, expired_before: datetime) -> bool:
    """Whether something that happened at a time, or after it, may have expired."""
    return not time or time < utc_text(expired_before + CLOCK_DIFFERENCE)


def grow_tree(leaves: Sequence[Leaf]) -> Tree:
    """The hashes of all complete subtrees."""
    known: Tree = {}
    for index, leaf in enumerate(leaves):
        grown = merkle.grow(index, merkle.hash_leaf(leaf.commitment), lambda level, i: known[level, i])
        known.update({(level, i): value for level, i, value in grown})
    return known


def check_tree(session: Session, leaves: Sequence[Leaf], known: Tree) -> Iterator[Flaw]:
    """Check the stored hashes and the signed head against the leaves."""
    stored = {(node.level, node.index): node.hash for node in session.scalars(select(Node))}
    if stored != known:
        yield Flaw("altered: the stored hashes do not match the leaves")
    head = signed_tree.newest_head(session)
    if head is None:
        if leaves:
            yield Flaw("missing: the register has leaves, but no signed head")
        return
    key = session.get(SigningKey, head["key_id"])
    if key is None or key.until is not None or not is_signed(head, key.public_key):
        yield Flaw("altered: the newest head is not signed with the current key")
    elif not is_configured(session, key):
        yield Flaw("altered: the newest head is not signed with the configured key")
    if head["size"] != len(leaves) or merkle.find_root(len(leaves), lambda *at: known[at]).hex() != head["root"]:
        yield Flaw("altered: the newest signed head does not match the leaves")


def is_configured(session: Session, key: SigningKey) -> bool:
    """Whether the settings have the key that the database names as the current one, or replace it.

    Whoever can write to the database could otherwise rebuild the register with a key of their own.
    """
    settings = session.info["settings"]
    if key.public_key in configured_keys(settings).values():
        return True
    return settings.signing_key_previous_file == LOST and is_named(key.key_id, key.public_key)


def check_keys(session: Session, leaves: Sequence[Leaf]) -> Iterator[Flaw]:
    """Check that the register announced each key but the first, and that the earlier keys are the announced ones."""
    keys = session.scalars(select(SigningKey)).all()
    found = {leaf.index: leaf for leaf in leaves}
    announced = dict[str, str]()
    for key in keys:
        if not is_named(key.key_id, key.public_key):
            yield Flaw(f"altered: the public key {key.key_id} differs from the one that the register announced")
        if key.until is None:
            continue
        record = read_record(found.get(key.until))
        # registers of earlier releases do not name the replaced key
        if record.get("kind") != RecordKind.KEY_ROTATED or record.get("replaces", key.key_id) != key.key_id:
            yield Flaw(f"altered: no leaf replaces the key {key.key_id}", key.until)
        elif key.head is not None and not is_signed(key.head, key.public_key):
            yield Flaw(f"altered: the head that announces the successor of the key {key.key_id}", key.until)
        announced[str(record.get("key_id"))] = str(record.get("public_key"))
    known = {key.key_id: key.public_key for key in keys}
    for leaf in leaves:
        record = read_record(leaf)
        id, public_key = str(record.get("key_id")), record.get("public_key")
        if record.get("kind") == RecordKind.KEY_ROTATED and known.get(id) != public_key:
            yield Flaw(f"missing or altered: the key {id}, which the register announced", leaf.index)
    if len(keys) > 1 and any(key.until is None and key.key_id not in announced for key in keys):
        yield Flaw("altered: the register did not announce the current key")


def read_record(leaf: Leaf | None) -> dict[str, Any]:
    """The record of a leaf; empty if it has expired or is not JSON."""
    try:
        found = json.loads(leaf.record) if leaf is not None and leaf.record is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def check_files(leaves: Sequence[Leaf], store: Store, strays: Set[str], known: Tree) -> Iterator[Flaw]:
    """Check the files of the leaves, and that the store has no others, except stray ones."""
    names = files.list_files(store)
    for leaf in leaves:
        content: dict[str, Any] | None = files.read_leaf(store, leaf.index) if names.pop(leaf.index, None) else None
        if content is None and leaf.filed:
            yield Flaw("missing: its file is no longer in the store", leaf.index)
        elif content is not None and (leaf.filed or not is_outdated(content, leaf)):
            proof = {name: content.pop(name, None) for name in ("path", "head")}
            if content != entry_of(leaf):
                yield Flaw("altered: its file in the store differs from the database", leaf.index)
            elif not is_proven(leaf, proof["path"], proof["head"], known):
                yield Flaw("altered: the proof in its file is not one of the register", leaf.index)
    for index, name in names.items():
        if name not in strays:
            yield Flaw("missing in the database: it is only in the store", index)


def entry_of(leaf: Leaf) -> StoredEntry | None:
    """What the file of a leaf should contain; None if its record was altered so that it is no JSON."""
    try:
        return stored_entry(leaf)
    except ValueError:
        return None


def is_proven(leaf: Leaf, path: Any, head: Any, known: Tree) -> bool:
    """Whether a path leads from a leaf to the root of a head, and the register extends that head."""
    try:
        hashed, steps = merkle.hash_leaf(leaf.commitment), [bytes.fromhex(step) for step in path]
        found = merkle.follow(hashed, leaf.index, head["size"], steps)
        root = merkle.find_root(head["size"], lambda *at: known[at])
    except (KeyError, TypeError, ValueError):
        return False
    return bool(root == found and root.hex() == head["root"])


def is_outdated(content: dict[str, Any], leaf: Leaf) -> bool:
    """Whether a file is yet to be written anew without its record, which has expired."""
    return leaf.record is None and content.get("commitment") == leaf.commitment.hex()


def check_older_head(session: Session, size: int, root: str) -> Iterator[Flaw]:
    """Check that the register extends an older head that somebody else kept."""
    if size > (current := signed_tree.size_of(session)):
        yield Flaw(f"truncated: an older head has {size} leaves, the register only {current}")
    elif merkle.find_root(size, signed_tree.SubtreeReader(session)).hex() != root:
        yield Flaw(f"rewritten: the first {size} leaves are not those of the older head")
