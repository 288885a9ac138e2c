"""The register's files in the store: one for each leaf, so that a restore of the database cannot hide any.

A file is written after its leaf was committed, by the process that wrote the leaf or by the next tick. The store is
therefore ahead of the database exactly if the file of the next leaf exists. A file has the proof that a signed head
includes its leaf: after a restore, nothing else is imported. A file that Amend cannot have written is stray: it is
reported, and otherwise ignored.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import NotFound, Unavailable
from core.ledger.queries import batched
from core.register import signed_tree
from core.register.records import Acknowledgement, canonical, commit
from core.tables.register import Leaf
from core.versions.store import Store

FOLDER = "register"
BATCH = 500
"""Leaves whose files are written in one go."""

logger = structlog.get_logger("core")


def name_of(index: int) -> str:
    return f"{FOLDER}/{index:08d}.json"


def list_files(store: Store) -> dict[int, str]:
    """The names of the leaves' files by index; other files in the folder are ignored."""
    found = {}
    for name in store.names(FOLDER):
        digits = name.rpartition("/")[2].removesuffix(".json")
        if digits.isdecimal() and name == name_of(int(digits)):
            found[int(digits)] = name
    return found


def read_file(store: Store, name: str) -> dict[str, Any] | None:
    """The content of a file in the store; None if there is none, and empty if it is not a JSON object."""
    try:
        found = json.loads(store.get(name))
    except NotFound:
        return None
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def read_leaf(store: Store, index: int) -> dict[str, Any] | None:
    return read_file(store, name_of(index))


def is_genuine(content: Mapping[str, Any] | None, index: int) -> bool:
    """Whether the content of a leaf's file is complete and matches its commitment."""
    try:
        if content is None or content["leaf"] != index:
            return False
        if len(bytes.fromhex(content["commitment"])) != hashlib.sha256().digest_size:
            return False
        if content["record"] is None:  # it has expired
            return bool(content["salt"] is None)
        made = commit(bytes.fromhex(content["salt"]), canonical(content["record"]))
        return bool(made.hex() == content["commitment"])
    except (KeyError, TypeError, ValueError):
        return False


def is_ahead(store: Store, size: int) -> bool:
    """Whether the store has the leaf that follows the first `size` leaves, or the one after it, if that was lost."""
    return any(is_genuine(read_leaf(store, index), index) for index in (size, size + 1))


def find_strays(session: Session, store: Store) -> list[str]:
    """The names of files in the register's folder that belong to no leaf, neither of the database nor a missing one."""
    names, size = list_files(store), signed_tree.size_of(session)
    last = size
    while last in names and is_ahead(store, last):
        last += 1
    ours = {name for index, name in names.items() if index < last}
    return [name for name in store.names(FOLDER) if name not in ours]


def require_same(session: Session, store: Store) -> None:
    """Raise Unavailable while the store has leaves that the database lacks: a new leaf would fork the register."""
    size = signed_tree.size_of(session)
    # without the lock, another process may have added a leaf and its file meanwhile
    if is_ahead(store, size) and signed_tree.size_of(session) == size:
        raise behind()
    last = read_leaf(store, size - 1) if size else None
    if last is not None:
        leaf = session.get(Leaf, size - 1)
        same = leaf is not None and last.get("commitment") == leaf.commitment.hex()
        # a stray file is moved when that of the leaf is written
        stray = leaf is not None and not leaf.filed and not is_genuine(last, size - 1)
        if not same and not stray:
            message = f"The database and the store have different entries at leaf {size - 1} of the register."
            raise Unavailable("receipts_diverged", f"{message} Run `amend receipts verify`.")


def behind() -> Unavailable:
    message = "The store has records of erasures, removals or corrections that the database lacks, as after a restore"
    return Unavailable("receipts_behind", f"{message} from a backup. Run `amend erasures replay` first.")


def write_missing(database: Database, store: Store, leaves: Sequence[Leaf]) -> int:
    """Write the files of leaves that are not filed yet to the store; returns how many."""
    if not leaves:
        return 0
    with database.read() as session:
        head, nodes = signed_tree.current_head(session), signed_tree.SubtreeReader(session)
        contents = [(leaf, signed_tree.acknowledge(leaf, head, nodes)) for leaf in leaves]
    done = [leaf for leaf, content in contents if write_leaf(store, leaf, content)]
    if done:
        with database.write() as session:
            for some in batched(done):
                # a record may have expired meanwhile: its file must be written again
                for expired in (False, True):
                    indices = [leaf.index for leaf in some if (leaf.record is None) == expired]
                    same = (Leaf.index.in_(indices), Leaf.record.is_(None) if expired else Leaf.record.is_not(None))
                    session.execute(update(Leaf).where(*same).values(filed=True))
    return len(done)


def unfiled(session: Session) -> list[Leaf]:
    """Leaves whose files have not been written yet, as many as are written in one go."""
    return list(session.scalars(select(Leaf).where(Leaf.filed.is_(False)).order_by(Leaf.index).limit(BATCH)))


def write_leaf(store: Store, leaf: Leaf, content: Acknowledgement) -> bool:
    """Write the file of a leaf, unless the store has another leaf in its place."""
    there = read_leaf(store, leaf.index)
    if there is not None and there.get("commitment") != leaf.commitment.hex():
        name = name_of(leaf.index)
        if is_genuine(there, leaf.index):
            logger.warning("register_file_conflicted", leaf=leaf.index)
            return False
        logger.warning("register_file_stray", file=name, moved_to=f"{name}.stray")
        store.write(f"{name}.stray", store.get(name))
    if leaf.record is None:
        store.delete(name_of(leaf.index))  # with anything of the record that a killed process left
        there = None
    if there != content:
        store.write(name_of(leaf.index), json.dumps(content, indent=2, ensure_ascii=False).encode())
    return True
