"""The register: signed heads, entries with their proofs, consistency of two heads, and rotations of the key.

An entry commits to a record: commitment = SHA-256(salt || canonical record). The commitment is the content of a leaf.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from amend.verification import merkle
from amend.verification.documents import Document, canonical
from amend.verification.findings import Refuted, Undecided
from amend.verification.keys import KeyRing, read_key


@dataclass(frozen=True)
class Head:
    """A signed statement that the register had `size` entries with this Merkle root."""

    size: int
    root: bytes
    time: str
    signature: bytes
    key_id: str
    where: str

    @classmethod
    def read(cls, fields: Document) -> "Head":
        time = fields.text("time")
        try:
            datetime.fromisoformat(time)
        except ValueError:
            raise fields.wrong("time", "a date and time in RFC 3339 format") from None
        return cls(
            fields.integer("size"),
            fields.digest("root"),
            time,
            fields.base64("signature"),
            fields.text("key_id"),
            fields.where,
        )

    def verify(self, ring: KeyRing, covered: bool = False) -> str:
        """Verify the signature, and describe the head."""
        message = f"amend-register-head-v1\n{self.size}\n{self.root.hex()}\n{self.time}\n".encode()
        signer = ring.verify(self.key_id, self.signature, message, f"the head in {self.where}", covered)
        entries = "1 entry" if self.size == 1 else f"{self.size} entries"
        return f"{entries}, {self.time}, {signer}"


@dataclass(frozen=True)
class Entry:
    """An entry of the register that was found in a head's tree. Its record is None once the record has expired."""

    leaf: int
    commitment: bytes
    record: Mapping[str, Any] | None

    @property
    def kind(self) -> object:
        return self.record.get("kind") if self.record else None


def read_entry(fields: Document, head: Head) -> Entry:
    """Verify that an entry is in the tree of a head, and that its record is the one it commits to."""
    leaf, commitment = fields.integer("leaf"), fields.digest("commitment")
    if not merkle.includes(head.root, head.size, leaf, merkle.leaf_hash(commitment), fields.digests("path")):
        raise Refuted(f"{fields.where}: entry {leaf} is not in the register of {head.where}.")
    if "record" not in fields and "salt" not in fields:
        return Entry(leaf, commitment, None)
    record = fields.inner("record")
    salt = fields.digest("salt")
    if hashlib.sha256(salt + canonical(record.fields, record.where)).digest() != commitment:
        raise Refuted(f"{fields.where}: the record of entry {leaf} is not the one that the register commits to.")
    if record.integer("v") != 1:
        raise Refuted(f"{record.where} has a format that this version of `amend verify` does not know.")
    return Entry(leaf, commitment, record.fields)


class ConsistencyProofs:
    """The consistency proofs of a bundle, which lead from earlier heads to the newest one."""

    def __init__(self, documents: list[Any], newest: Head) -> None:
        proofs = [Document(one, "consistency.json") for one in documents]
        self.paths = {proof.integer("from"): proof.digests("path") for proof in proofs if ends_at(proof, newest)}
        self.newest = newest

    def verify(self, older: Head) -> str:
        """Verify that the register of the newest head starts with the register of an older one."""
        newest = self.newest
        if older.size > newest.size:
            raise Undecided(
                f"The head in {older.where} has size {older.size}, the bundle's only {newest.size}. Either the "
                "bundle is older than the head, or the register has lost entries. Download the bundle again."
            )
        path = [] if older.size == newest.size else self.paths.get(older.size)
        if path is None:
            raise Undecided(
                f"The bundle has no consistency proof from size {older.size}. Download it again "
                f"with --from {older.size}."
            )
        if not merkle.extends(older.root, older.size, newest.root, newest.size, path):
            raise Refuted(
                f"The register of {newest.where} does not extend the one of {older.where}: entries were changed, "
                "removed or reordered."
            )
        return f"from size {older.size} to {newest.size}"


def ends_at(proof: Document, newest: Head) -> bool:
    return proof.integer("to") == newest.size


def read_entries(documents: Any, head: Head, erasure: str) -> list[Entry]:
    """Verify the entries of one erasure request."""
    if not isinstance(documents, list) or not documents:
        raise Refuted("entries.json must be a list with at least one entry.")
    entries = [read_entry(Document(one, "entries.json"), head) for one in documents]
    if len({entry.leaf for entry in entries}) < len(entries):
        raise Refuted("entries.json has the same entry twice.")
    for entry in entries:
        if entry.record is not None and entry.record.get("erasure") != erasure:
            raise Refuted(f"entries.json: entry {entry.leaf} does not belong to erasure {erasure}.")
    return sorted(entries, key=lambda entry: entry.leaf)


def follow_rotation(ring: KeyRing, earlier: Document, proofs: ConsistencyProofs | None) -> str:
    """Trust the successor of a trusted key: the trusted key signed a head whose register announces it."""
    if "head" not in earlier:
        raise Undecided(f"Key {earlier.text('key_id')} was lost before it could announce the new key. Supply that.")
    head = Head.read(earlier.inner("head"))
    if head.key_id != earlier.text("key_id"):
        raise Refuted(f"The head that announces the successor of key {earlier.text('key_id')} has a different signer.")
    head.verify(ring)
    entry = read_entry(earlier.inner("rotation"), head)
    if entry.record is None:
        raise Undecided(f"The record of the rotation, entry {entry.leaf}, has expired.")
    if entry.kind != "key_rotated":
        raise Refuted(f"Entry {entry.leaf} does not announce a new key.")
    if proofs is not None:
        proofs.verify(head)
    key_id, key = read_key(Document(entry.record, f"the record of entry {entry.leaf}"))
    ring.trusted[key_id] = key
    return f"key {head.key_id} announced key {key_id} in entry {entry.leaf}"
