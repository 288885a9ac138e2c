"""`amend backup` and `amend restore` refuse what would lose data, and say why."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core import clock
from core.database import Database
from core.erasure.receipts import write_files
from core.errors import AmendError
from core.metadata import secret_matches
from core.register import lag
from core.settings import Settings
from core.versions import store_identity
from core.versions.store import Store
from migrations import backup, copies
from migrations.runner import upgrade
from tests.clock import VirtualClock
from tests.core.erasure.erasure_helpers import erase_nobody, find_erasure
from tests.servers import PostgresServer


@dataclass
class Installation:
    settings: Settings
    database: Database

    @property
    def store(self) -> Store:
        return Store(self.settings.artifacts)

    def save(self, folder: Path) -> Path:
        backup.save(self.database, self.store, folder)
        return folder

    def restore(self, folder: Path, lossy: bool = False) -> None:
        self.database.close()
        backup.restore(self.settings, self.database, self.store, folder, lossy)


def install(home: Path, **options: Any) -> Installation:
    settings = Settings(home=home, **{"secret_key": "secret", **options})
    database = Database(settings)
    upgrade(database)
    with database.write() as session:
        assert secret_matches(session, settings.secret)
    return Installation(settings, database)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    found = install(tmp_path / "home")
    store_identity.begin(found.database, found.store)
    yield found
    found.database.close()


def test_an_incomplete_backup_is_not_restored(installation: Installation, tmp_path: Path) -> None:
    folder = installation.save(tmp_path / "backup")
    (folder / backup.MANIFEST).unlink()
    with pytest.raises(AmendError, match="not a complete backup"):
        installation.restore(folder)


def test_a_backup_needs_the_secret_that_it_was_made_with(installation: Installation, tmp_path: Path) -> None:
    folder = installation.save(tmp_path / "backup")
    other = install(tmp_path / "other", secret_key="another")
    with pytest.raises(AmendError, match="AMEND_SECRET_KEY differs"):
        other.restore(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"database": "postgresql"}, "of a postgresql database"), ({"schema": "9999"}, "newer"), ({"format": 2}, "newer")],
)
def test_a_backup_of_another_kind_is_not_restored(
    installation: Installation, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = installation.save(tmp_path / "backup")
    manifest = json.loads((folder / backup.MANIFEST).read_text())
    (folder / backup.MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(AmendError, match=message):
        installation.restore(folder)


def test_a_backup_that_is_too_old_is_restored_only_on_request(installation: Installation, tmp_path: Path) -> None:
    folder = installation.save(tmp_path / "backup")
    with clock.use(VirtualClock(clock.now() + timedelta(days=36))):
        with pytest.raises(AmendError, match="--lossy"):
            installation.restore(folder)
        installation.restore(folder, lossy=True)


def test_a_database_in_use_is_not_replaced(installation: Installation, tmp_path: Path) -> None:
    folder = installation.save(tmp_path / "backup")
    path = copies.path_of(installation.database)
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM models").fetchall()
        with pytest.raises(AmendError, match="Another process uses the database"):
            installation.restore(folder)
    installation.restore(folder)


def test_the_log_of_a_lost_database_is_not_written_into_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "amend.db"
    database = Database(Settings(home=tmp_path))
    with closing(sqlite3.connect(path)) as open_database:
        open_database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (x); PRAGMA wal_checkpoint(TRUNCATE)")
        copies.save(database, tmp_path / "copy")
        open_database.execute("INSERT INTO t VALUES (1)")
        open_database.commit()
        logs = {name: (tmp_path / name).read_bytes() for name in ("amend.db-wal", "amend.db-shm")}
    path.unlink()
    for name, content in logs.items():
        (tmp_path / name).write_bytes(content)
    copies.load(database, tmp_path / "copy")
    with closing(sqlite3.connect(path)) as restored:
        assert restored.execute("SELECT * FROM t").fetchall() == []


def test_a_lost_store_gets_the_register_of_the_backup(installation: Installation, tmp_path: Path) -> None:
    erase_nobody(installation.database)
    write_files(installation.database, installation.store)
    folder = installation.save(tmp_path / "backup")
    new = install(tmp_path / "new")
    new.restore(folder)
    with new.database.read() as session:
        lag.require_current(session, new.store)
    assert new.store.names("register") == installation.store.names("register") != []
    assert new.store.get(store_identity.FILE) == installation.store.get(store_identity.FILE)


def test_postgresql_is_restored_and_replayed(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create_database(f"restore{tmp_path.name[-20:]}".lower())
    found = install(tmp_path / "home", database_url=url)
    store_identity.begin(found.database, found.store)
    folder = found.save(tmp_path / "backup")
    id = erase_nobody(found.database)
    write_files(found.database, found.store)
    with found.database.read(), pytest.raises(AmendError, match="other connections"):
        backup.restore(found.settings, Database(found.settings), found.store, folder, False)
    found.restore(folder)
    assert find_erasure(found.database, id).receipt == 1
    found.database.close()


def test_a_missing_program_is_named(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.create_database(f"backup{tmp_path.name[-20:]}".lower())
    found = install(tmp_path / "home", database_url=url)
    store_identity.begin(found.database, found.store)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AmendError, match="pg_dump is not on the PATH"):
        found.save(tmp_path / "backup")
    found.database.close()
