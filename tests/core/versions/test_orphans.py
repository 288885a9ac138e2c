"""Files of deleted models are deleted eventually."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from core.database import Database
from core.tables.bookkeeping import OrphanFile
from core.versions.orphan_files import sweep
from core.versions.store import Store


def test_an_orphan_that_cannot_be_deleted_is_retried(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    file, _ = store.put("models/1", b"weights")
    with database.write() as session:
        session.add(OrphanFile(path="models/1"))

    def refuse(path: str, recursive: bool) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(store.files, "rm", refuse)
        sweep(database, store)
    assert (tmp_path / file).exists()
    sweep(database, store)
    assert not (tmp_path / file).exists()
    with database.read() as session:
        assert session.scalars(select(OrphanFile)).all() == []
