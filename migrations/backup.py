"""`python -m migrations.backup save|restore FOLDER`: backups of the database and of the register's files.

A backup contains no weights: those of a version may depend on people who are erased later. A restore replaces only the
database, and then repeats what the store has recorded since the backup (`core.lifecycle.replay_after_restore`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from core.audit import entries
from core.audit.entries import Origin
from core.clock import now
from core.database import Database, utc_text
from core.erasure import receipts
from core.errors import AmendError, Conflict, Invalid
from core.lifecycle.replay_after_restore import Replayed, replay
from core.metadata import secret_check
from core.register import files, journal_files
from core.register.records import SYSTEM
from core.settings import Settings, from_environment, parse_days
from core.tables.audit import Action
from core.tables.bookkeeping import Metadata
from core.versions import store_identity
from core.versions.store import Store
from migrations import copies, runner

FORMAT = 1
MANIFEST = "manifest.json"
"""Written last, so that an incomplete backup has none."""
FOLDERS = (files.FOLDER, receipts.FOLDER, journal_files.FOLDER)
"""Folders of the store that are part of a backup."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m migrations.backup")
    parser.add_argument("command", choices=["save", "restore"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lossy", action="store_true")
    options = parser.parse_args()
    os.umask(0o077)  # backups are readable only by their owner
    settings = from_environment()
    database, store = Database(settings), Store(settings.artifacts)
    try:
        if options.command == "save":
            save(database, store, options.folder)
        else:
            restore(settings, database, store, options.folder, options.lossy)
    except SQLAlchemyError as error:
        sys.exit(runner.describe(database, error))


def save(database: Database, store: Store, folder: Path) -> None:
    """Back up the database, then the files of the register, of receipts and of the journal."""
    if problem := runner.find_problem(database):
        sys.exit(problem)
    if folder.exists() and any(folder.iterdir()):
        raise Invalid("backup_exists", f"The folder {folder} is not empty. Choose another.")
    identity = store_identity.identify(database, store)
    with database.read() as session:
        secret = session.get_one(Metadata, "secret").value.hex()
    (folder / "store").mkdir(parents=True, exist_ok=True)
    created_at = utc_text(now())
    copies.save(database, folder / copies.FILES[copies.kind_of(database)])
    count = 0
    for name in (name for part in FOLDERS for name in store.names(part)):
        target = folder / "store" / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(store.get(name))
        count += 1
    manifest = {
        "format": FORMAT,
        "database": copies.kind_of(database),
        "schema": runner.current(database),
        "created_at": created_at,
        "store": identity,
        "secret": secret,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    print(f"Backed up the database and {count} files of the register to {folder}.")


def restore(settings: Settings, database: Database, store: Store, folder: Path, lossy: bool) -> None:
    """Replace the database by a backup, and repeat what the store has recorded since."""
    manifest = read_manifest(folder)
    check(settings, database, manifest, lossy)
    copies.require_unused(database)
    restore_store(store, manifest, folder)
    copies.load(database, folder / copies.FILES[manifest["database"]])
    print(f"Restored the database as of {manifest['created_at']}.")
    runner.upgrade(database)
    with database.write() as session:
        done = replay(session, store, settings.secret, SYSTEM, None)
        entries.record(session, Origin(SYSTEM), Action.ERASURES_REPLAYED)
    receipts.write_files(database, store)
    print(describe(done))


def read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        known = manifest["format"] == FORMAT and manifest["database"] in copies.FILES
    except (OSError, ValueError, KeyError, TypeError):
        raise Invalid("backup_invalid", f"The folder {folder} is not a complete backup: no valid {MANIFEST}.") from None
    if not known:
        raise Invalid("backup_invalid", f"The backup {folder} was made by a newer release. Update Amend.")
    return manifest


def check(settings: Settings, database: Database, manifest: dict[str, Any], lossy: bool) -> None:
    """Raise AmendError if a backup must not be restored here."""
    if manifest["database"] != copies.kind_of(database):
        message = f"The backup is of a {manifest['database']} database. Set AMEND_DATABASE_URL to one of that kind."
        raise Invalid("backup_invalid", message)
    if not runner.is_known(manifest["schema"]):
        raise Invalid("backup_invalid", f"The backup has a newer schema ({manifest['schema']}). Update Amend.")
    if manifest["secret"] != secret_check(settings.secret).hex():
        raise Invalid("secret_mismatch", "AMEND_SECRET_KEY differs from the key that the backup was made with.")
    age = now() - datetime.fromisoformat(manifest["created_at"])
    if age > parse_days(settings.backup_retention) and not lossy:
        message = f"The backup is {age.days} days old, more than AMEND_BACKUP_RETENTION ({settings.backup_retention})."
        hint = "Removals and corrections since may be lost. To restore it all the same, add --lossy."
        raise Conflict("backup_too_old", f"{message} {hint}")


def restore_store(store: Store, manifest: dict[str, Any], folder: Path) -> None:
    """Check that the store belongs to the backup; if it is new, copy the register's files of the backup to it."""
    if store.exists(store_identity.FILE):
        store_identity.check(store, manifest["store"])
        return  # it is newer than the backup, and contains nothing about people who were erased since
    saved = folder / "store"
    for path in sorted(saved.rglob("*")):
        if path.is_file():
            store.write(path.relative_to(saved).as_posix(), path.read_bytes())
    store.write(store_identity.FILE, manifest["store"].encode())


def describe(done: Replayed) -> str:
    counts = {
        "receipts restored": done.receipts,
        "requests restored": len(done.requests),
        "erasures repeated": len(done.erasures),
        "examples removed": done.removals,
        "examples corrected": done.corrections,
        "examples removed because their correction was lost": done.outdated,
        "models deleted": len(done.models),
    }
    repeated = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing"
    lines = [f"Repeated what happened since: {repeated}."]
    lines += [f"Ignored a stray file in the store: {name}" for name in done.strays]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
