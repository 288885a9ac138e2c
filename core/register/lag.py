"""Whether the store is ahead of the database, as after a restore from a backup. No job may run then."""

from sqlalchemy.orm import Session

from core.register import files, journal_files
from core.versions.store import Store


def require_current(session: Session, store: Store) -> None:
    """Raise Unavailable while the store has leaves of the register or files of the journal that the database lacks."""
    files.require_same(session, store)
    unknown, _ = journal_files.find_unknown(session, store)
    if unknown:
        raise files.behind()
