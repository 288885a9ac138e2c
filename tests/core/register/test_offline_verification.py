"""`amend verify` accepts what the register writes: proofs, rotations of the key, expired records and time stamps."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

from sqlalchemy import update

from amend.verification import Result, Verification, verify_bundle
from core.database import Database
from core.erasure.bundle import collect_proofs
from core.register.published_keys import public_keys
from core.register.signed_tree import current_head
from core.register.timestamps import stamp_newest_head
from core.settings import Settings
from core.tables.erasures import Erasure
from core.tables.register import Leaf
from tests.amend.verification.builder import manifest_of
from tests.core.register.test_log import home, with_key, write
from tests.timestamp_authority import serve

__all__ = ["home"]


def verify(database: Database, folder: Path, older: int, **files: object) -> Verification:
    """Verify the bundle of request `a`, which has not been completed; `files` are JSON documents or paths."""
    with database.read() as session:
        found = collect_proofs(session, Erasure(id="a"), None, [older])
    with ZipFile(folder / "bundle.zip", "w") as archive:
        for name, content in {**found, "manifest.json": manifest_of(found, "a")}.items():
            archive.writestr(name, content)
    paths: dict[str, Path] = {}
    for name, value in files.items():
        paths[name] = value if isinstance(value, Path) else folder / name
        if not isinstance(value, Path):
            paths[name].write_text(json.dumps(value))
    return verify_bundle(folder / "bundle.zip", **paths)


def test_what_the_register_writes_is_verified_offline(home: tuple[Database, Settings], tmp_path: Path) -> None:
    database, settings = home
    write(database, "a", "b", "c")
    with database.read() as session:
        key, head = public_keys(session), dict(current_head(session))
    write(database, "d")
    (tmp_path / "authority").mkdir()
    with serve(tmp_path / "authority") as authority:
        assert stamp_newest_head(database, authority.url)
    root = tmp_path / "authority" / "root.pem"
    rotated = with_key(settings, tmp_path / "new.pem", str(settings.folder / "signing.key"))
    write(rotated, "e", "a")
    with rotated.write() as session:
        session.execute(update(Leaf).where(Leaf.index == 0).values(record=None, salt=None))

    found = verify(rotated, tmp_path, head["size"], key=key, head=head, authority=root)
    assert found.passed, found.checks
    assert [check.what for check in found.checks] == [
        "Files of the bundle",
        "Change of the signing key",
        "Newest head of the register",
        "Entries of the request",
        "Your older head",
        "The register only grew since your head",
        "Time stamp timestamps/001.tsr",
    ]
    with rotated.read() as session:
        assert verify(rotated, tmp_path, head["size"], key=public_keys(session), head=head).passed
    rotated.close()


def test_a_register_that_the_operator_signed_again_does_not_extend_a_head_that_was_kept(
    home: tuple[Database, Settings], tmp_path: Path
) -> None:
    database, _ = home
    write(database, "a", "b")
    with database.read() as session:
        key, head = public_keys(session), dict(current_head(session))
    write(database, "c")
    kept = {**head, "root": "0" * 64}
    found = {check.what: check.result for check in verify(database, tmp_path, 2, key=key, head=kept).checks}
    assert found["The register only grew since your head"] is Result.FAILED
    assert verify(database, tmp_path, 2, key=key, head=head).passed
