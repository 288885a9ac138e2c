"""A database rejects the store of another database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.database import Database
from core.errors import Unavailable
from core.versions import store_identity
from core.versions.store import Store


def test_processes_that_start_together_create_one_id(empty_database: Database, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        marks = set(threads.map(lambda _: store_identity.identify(empty_database, Store(str(tmp_path))), range(8)))
    assert marks == {(tmp_path / store_identity.FILE).read_text()}


def test_another_folder_is_detected(empty_database: Database, tmp_path: Path) -> None:
    own, other = Store(str(tmp_path / "own")), Store(str(tmp_path / "other"))
    expected = store_identity.identify(empty_database, own)
    with pytest.raises(Unavailable, match="no file named") as caught:
        store_identity.begin(empty_database, other)
    assert expected in caught.value.detail
    other.write(store_identity.FILE, b"another")
    with pytest.raises(Unavailable, match="belongs to another"):
        store_identity.check(other, expected)
    other.write(store_identity.FILE, f"{expected}\n".encode())  # as the message says
    store_identity.begin(empty_database, other)


def test_a_store_with_the_id_of_another_database_is_rejected(empty_database: Database, tmp_path: Path) -> None:
    (tmp_path / store_identity.FILE).write_text("another")
    for _ in range(2):
        with pytest.raises(Unavailable, match="belongs to another"):
            store_identity.begin(empty_database, Store(str(tmp_path)))


def test_a_store_that_is_down_does_not_keep_processes_from_starting(empty_database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    down = Store(str(tmp_path / "file"))  # in which no file can be
    store_identity.begin(empty_database, down)
    with pytest.raises(Unavailable, match="cannot be written"):
        store_identity.identify(empty_database, down)
    store_identity.begin(empty_database, Store(str(tmp_path)))
