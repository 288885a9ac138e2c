"""Which store belongs to which database: a mark in the one and a file in the other say the same.

Two hosts that each use a folder of their own would go unnoticed otherwise: versions that one of them made would be
missing on the other, and what an erasure looks for in the wrong place is not there.
"""

from __future__ import annotations

import uuid

from sqlalchemy.exc import IntegrityError

from core.database import Database
from core.errors import NotFound, Unavailable
from core.tables.bookkeeping import Metadata
from core.versions.store import Store

FILE = "database"
"""The name of the file."""
FOREIGN = "store_foreign"
NAME = "store"


def begin(database: Database, store: Store) -> None:
    """At the start of a process: Unavailable if the store is another's, but not if it is only down for now."""
    try:
        mark(database, store)
    except Unavailable as error:
        if error.code == FOREIGN:
            raise


def mark(database: Database, store: Store) -> str:
    """What both say; Unavailable if they differ. The first process that uses a new database marks it and its store."""
    with database.read() as session:
        known = session.get(Metadata, NAME)
    if known is None:
        new = uuid.uuid4().hex
        try:
            with database.write() as session:
                session.add(Metadata(name=NAME, value=new.encode()))
                session.flush()  # from here on others wait
                if store.exists(FILE):
                    raise foreign(new, "it belongs to another database")
                store.write(FILE, new.encode())
                return new
        except IntegrityError:  # another process was first
            return mark(database, store)
    check(store, known.value.decode())
    return known.value.decode()


def check(store: Store, expected: str) -> None:
    """Unavailable unless the store still is the one of the database that has this mark."""
    try:
        found = store.get(FILE).decode(errors="replace").strip()
    except NotFound:
        raise foreign(expected, f"it has no file named {FILE}") from None
    if found != expected:
        raise foreign(expected, "it belongs to another database")


def foreign(expected: str, why: str) -> Unavailable:
    message = (
        f"The store of version files is not this database's: {why}. All processes need the same AMEND_ARTIFACTS_URL. "
        f"Should this be the right store after all, write {expected} into its file {FILE}."
    )
    return Unavailable(FOREIGN, message)
