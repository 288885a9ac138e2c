"""The register's files in the store: one for each leaf, so that a restore of the database cannot hide any.

A file is written after its leaf was committed, by the process that wrote the leaf or by the next tick. The store is
therefore ahead of the database exactly if the file of the next leaf exists.
"""

import json
from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import NotFound, Unavailable
from core.ledger.queries import batched
from core.register import tree
from core.register.records import stored_entry
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


def require_same(session: Session, store: Store) -> None:
    """Raise Unavailable while the store has leaves that the database lacks: a new leaf would fork the register."""
    size = tree.size_of(session)
    # without the lock, another process may have added a leaf and its file meanwhile
    if store.exists(name_of(size)) and tree.size_of(session) == size:
        message = "The store contains receipts that the database lacks. Run `amend erasures replay` first."
        raise Unavailable("receipts_behind", message)
    last = read_leaf(store, size - 1) if size else None
    if last is not None:
        stored = session.scalar(select(Leaf.commitment).where(Leaf.index == size - 1))
        if last.get("commitment") != (stored.hex() if stored else None):
            message = f"The database and the store have different entries at leaf {size - 1} of the register."
            raise Unavailable("receipts_diverged", f"{message} Run `amend receipts verify`.")


def write_missing(database: Database, store: Store) -> int:
    """Write missing files of leaves to the store; returns how many."""
    with database.read() as session:
        leaves = unfiled(session)
    done = [leaf for leaf in leaves if write_leaf(store, leaf)]
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


def write_leaf(store: Store, leaf: Leaf) -> bool:
    """Write the file of a leaf, unless the store has another leaf in its place."""
    there = read_leaf(store, leaf.index)
    if there is not None and there.get("commitment") != leaf.commitment.hex():
        logger.warning("register_file_conflicted", leaf=leaf.index)
        return False
    content: Mapping[str, Any] = stored_entry(leaf)
    if leaf.record is None:
        store.delete(name_of(leaf.index))  # with anything of the record that a killed process left
        there = None
    if there != content:
        store.write(name_of(leaf.index), json.dumps(content, indent=2, ensure_ascii=False).encode())
    return True
