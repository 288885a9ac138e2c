"""Checking that a store belongs to the database: both contain the same id.

Otherwise it would go unnoticed if two hosts each used a local folder: versions made by one would be missing on the
other, and erasures would search the wrong store.
"""

import uuid

from sqlalchemy.exc import IntegrityError

from core.database import Database
from core.errors import NotFound, Unavailable
from core.tables.bookkeeping import Metadata
from core.versions.store import Store

FILE = "database"
"""Name of the file with the id."""
FOREIGN = "store_foreign"
NAME = "store"


def begin(database: Database, store: Store) -> None:
    """Check the store when a process starts; raises Unavailable if it belongs to another database, but not if it is
    only down."""
    try:
        identify(database, store)
    except Unavailable as error:
        if error.code == FOREIGN:
            raise


def identify(database: Database, store: Store) -> str:
    """The id of the store; raises Unavailable if it differs from the database's. The first process creates the id."""
    with database.read() as session:
        known = session.get(Metadata, NAME)
    if known is None:
        new = uuid.uuid4().hex
        try:
            with database.write() as session:
                session.add(Metadata(name=NAME, value=new.encode()))
                session.flush()  # from here on, other processes wait
                if store.exists(FILE):
                    raise foreign(new, "It belongs to another database.")
                store.write(FILE, new.encode())
                return new
        except IntegrityError:  # another process was first
            return identify(database, store)
    check(store, known.value.decode())
    return known.value.decode()


def check(store: Store, expected: str) -> None:
    """Raise Unavailable unless the store has this id."""
    try:
        found = store.get(FILE).decode(errors="replace").strip()
    except NotFound:
        raise foreign(expected, f"It has no file named {FILE}.") from None
    if found != expected:
        raise foreign(expected, "It belongs to another database.")


def foreign(expected: str, reason: str) -> Unavailable:
    message = (
        f"The store of version files does not belong to this database. {reason} All processes need the same "
        f"AMEND_ARTIFACTS_URL. If it is the right store, write {expected} to its file {FILE}."
    )
    return Unavailable(FOREIGN, message)
