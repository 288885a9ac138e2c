"""Deleting the files of deleted models: right after the deletion, and again at a start if something came between."""

from __future__ import annotations

import structlog
from sqlalchemy import delete, select

from core.database import Database
from core.marks import Litter
from core.versions.store import Store

log = structlog.get_logger("core")


def sweep(database: Database, store: Store) -> None:
    """Delete what is noted as litter; what cannot be deleted now stays noted."""
    with database.read() as session:
        folders = list(session.scalars(select(Litter.folder)))
    for folder in folders:
        try:
            store.delete_folder(folder)
        except OSError as error:
            log.warning("files of a deleted model could not be deleted yet", exc_info=error)
            continue
        with database.write() as session:
            session.execute(delete(Litter).where(Litter.folder == folder))
