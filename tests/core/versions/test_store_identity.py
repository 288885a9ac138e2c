"""A database knows its store, and a store its database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.database import Database
from core.errors import Unavailable
from core.versions import store_identity
from core.versions.store import Store


def test_processes_that_start_together_on_new_ones_mark_them_once(empty_database: Database, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        marks = set(threads.map(lambda _: store_identity.mark(empty_database, Store(str(tmp_path))), range(8)))
    assert marks == {(tmp_path / store_identity.FILE).read_text()}


def test_another_folder_is_told_from_the_databases_own(empty_database: Database, tmp_path: Path) -> None:
    own, other = Store(str(tmp_path / "own")), Store(str(tmp_path / "other"))
    expected = store_identity.mark(empty_database, own)
    with pytest.raises(Unavailable, match="no file named") as caught:
        store_identity.begin(empty_database, other)
    assert expected in caught.value.detail
    other.write(store_identity.FILE, b"another")
    with pytest.raises(Unavailable, match="belongs to another"):
        store_identity.check(other, expected)
    other.write(store_identity.FILE, f"{expected}\n".encode())  # as the message says
    store_identity.begin(empty_database, other)


def test_a_store_with_the_mark_of_another_database_is_not_taken(empty_database: Database, tmp_path: Path) -> None:
    (tmp_path / store_identity.FILE).write_text("another")
    for _ in range(2):
        with pytest.raises(Unavailable, match="belongs to another"):
            store_identity.begin(empty_database, Store(str(tmp_path)))


def test_a_store_that_is_down_for_now_keeps_nobody_from_starting(empty_database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    down = Store(str(tmp_path / "file"))  # in which no file can be
    store_identity.begin(empty_database, down)
    with pytest.raises(Unavailable, match="takes nothing"):
        store_identity.mark(empty_database, down)
    store_identity.begin(empty_database, Store(str(tmp_path)))
