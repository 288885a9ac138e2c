"""The stored tree: its lock, its newest signed head, appending, and proofs."""

import json
from collections.abc import Collection, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import NotFound, Unavailable
from core.register import merkle
from core.register.records import Acknowledgement, PendingLeaf, canonical, stored_entry
from core.register.signing import LOST, Head, Signer, configured_keys, is_named, is_signed, signer_of
from core.tables.bookkeeping import Metadata
from core.tables.register import Leaf, Node, SigningKey

LOCK = "register"
"""Name of the row whose value is the newest signed head, and whose lock is the register's."""
TEXTS = ("root", "time", "signature", "key_id")
"""Fields of a head that are texts."""


class SubtreeReader:
    """Reads the hashes of complete subtrees, each once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.known: dict[tuple[int, int], bytes] = {}

    def __call__(self, level: int, index: int) -> bytes:
        if (level, index) not in self.known:
            query = select(Node.hash).where(Node.level == level, Node.index == index)
            found = self.session.scalar(query)
            if found is None:
                raise damaged(f"The hash of subtree {index} of level {level} is missing.")
            self.known[level, index] = found
        return self.known[level, index]


def damaged(reason: str) -> Unavailable:
    message = f"The register in the database was altered, and nothing can be added to it. {reason}"
    return Unavailable("register_damaged", f"{message} Run `amend receipts verify`, and restore a backup.")


def lock(session: Session) -> Head | None:
    """Lock the register until the end of the transaction; returns its head, which is None if it is empty."""
    row = session.get_one(Metadata, LOCK, with_for_update=True, populate_existing=True)
    return parse_head(row.value)


def append(
    session: Session, leaves: Sequence[PendingLeaf], first: int, signer: Signer, replaced: Collection[str] = ()
) -> Head:
    """Append leaves to the locked register of `first` leaves, and sign its new head.

    Checks the last signed head first: otherwise whoever can write to the database could insert leaves, and they would
    be signed with the next one. It may be signed with a configured key, or with one of those that the leaves replace.
    """
    nodes = SubtreeReader(session)
    check_head(session, first, nodes, replaced)
    added: list[dict[str, Any]] = []
    for index, leaf in enumerate(leaves, first):
        grown = merkle.grow(index, merkle.hash_leaf(leaf.commitment), nodes)
        nodes.known.update({(level, i): value for level, i, value in grown})
        added += [{"level": level, "index": i, "hash": value} for level, i, value in grown]
        session.add(to_row(index, leaf))
    session.execute(sa.insert(Node), added)
    size = first + len(leaves)
    head = signer.sign_head(size, merkle.find_root(size, nodes))
    store_head(session, head)
    return head


def to_row(index: int, leaf: PendingLeaf) -> Leaf:
    return Leaf(
        index=index,
        commitment=leaf.commitment,
        salt=None if leaf.expired else leaf.salt,
        record=None if leaf.expired else canonical(leaf.record),
        erasure_id=leaf.record.get("erasure"),
        filed=False,
        created_at=leaf.created_at,
    )


def store_head(session: Session, head: Head) -> None:
    session.get_one(Metadata, LOCK).value = json.dumps(head).encode()
    session.flush()


def check_head(session: Session, size: int, nodes: merkle.Nodes, replaced: Collection[str] = ()) -> None:
    """Raise Unavailable unless the stored leaves are those of the last signed head."""
    head = newest_head(session)
    last = session.scalar(select(sa.func.max(Leaf.index)))
    if (0 if last is None else last + 1) != size:
        raise damaged(f"Its last signed head has {size} leaves, but the database has a different number.")
    if head is None:
        return
    key = session.get(SigningKey, head["key_id"])
    if key is None or not is_trusted(session, key, replaced) or not is_signed(head, key.public_key):
        raise damaged("The signature of its last head is invalid.")
    if merkle.find_root(size, nodes).hex() != head["root"]:
        raise damaged("Its leaves do not match its last signed head.")


def is_trusted(session: Session, key: SigningKey, replaced: Collection[str]) -> bool:
    """Whether a head that is signed with this key can be extended.

    The database is not trusted with keys: whoever can write to it could add one of their own, and have leaves signed
    that were forged. A key that the settings do not have counts only if it was replaced, or is declared lost.
    """
    settings = session.info["settings"]
    if key.public_key in configured_keys(settings).values():
        return True
    lost = settings.signing_key_previous_file == LOST and key.until is None
    return (lost or key.key_id in replaced) and is_named(key.key_id, key.public_key)


def newest_head(session: Session) -> Head | None:
    """The newest signed head; None if the register is empty."""
    return parse_head(session.scalar(select(Metadata.value).where(Metadata.name == LOCK)))


def parse_head(value: bytes | None) -> Head | None:
    """A stored head. Raises Unavailable if somebody replaced it by something else."""
    if not value:
        return None
    try:
        found = json.loads(value)
        if isinstance(found["size"], int) and all(isinstance(found[name], str) for name in TEXTS):
            return cast(Head, found)
    except (KeyError, TypeError, ValueError):
        pass
    raise damaged("Its last signed head cannot be read.")


def current_head(session: Session) -> Head:
    """The newest signed head; that of an empty register is signed now."""
    return newest_head(session) or signer_of(session.info["settings"]).sign_head(0, merkle.EMPTY_ROOT)


def size_of(session: Session) -> int:
    head = newest_head(session)
    return head["size"] if head else 0


def prove_inclusion(session: Session, leaf: int, size: int) -> list[str]:
    """The inclusion proof of a leaf. Raises NotFound if the register has no such leaf, or is smaller."""
    require_size(session, size)
    if not 0 <= leaf < size:
        raise NotFound("leaf_not_found", f"The register of {size} leaves has no leaf {leaf}. The first leaf is 0.")
    return [value.hex() for value in merkle.prove_inclusion(leaf, size, SubtreeReader(session))]


def prove_consistency(session: Session, old: int, size: int) -> list[str]:
    """The proof that the register of `size` leaves extends that of `old` leaves. Raises NotFound if it is smaller."""
    require_size(session, size)
    if not 0 <= old <= size:
        raise NotFound("leaf_not_found", f"A register of {size} leaves does not extend one of {old}.")
    return [value.hex() for value in merkle.prove_consistency(old, size, SubtreeReader(session))]


def acknowledge(leaf: Leaf, head: Head, nodes: merkle.Nodes) -> Acknowledgement:
    """A leaf with its inclusion proof for a signed head that includes it."""
    path = [value.hex() for value in merkle.prove_inclusion(leaf.index, head["size"], nodes)]
    return Acknowledgement(**stored_entry(leaf), path=path, head=head)


def require_size(session: Session, size: int) -> None:
    if size > (current := size_of(session)):
        raise NotFound("leaf_not_found", f"The register has {current} leaves, fewer than {size}.")
