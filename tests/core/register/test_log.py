"""The register as it is stored: leaves, signed heads, proofs and keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import NotFound, Unavailable
from core.register import log, merkle, signed_tree
from core.register.published_keys import public_keys
from core.register.records import canonical, commit
from core.register.signing import create_key, is_signed, read_signer
from core.register.signing_keys import current_key
from core.settings import Settings
from core.tables.register import Leaf, Node, RecordKind, SigningKey
from tests.core.conftest import MakeSettings, migrated


def write(database: Database, *ids: str) -> None:
    """Append one leaf for each id, in one transaction."""
    with database.write() as session:
        for id in ids:
            log.record(session, RecordKind.FILED, "key", erasure=id)


def follow(leaf_hash: bytes, index: int, size: int, path: list[str]) -> str:
    """The root that an inclusion proof leads to (RFC 9162, 2.1.3.2)."""
    node, last, value = index, size - 1, leaf_hash
    for step in map(bytes.fromhex, path):
        assert last > 0
        if node % 2 or node == last:
            value = merkle.hash_node(step, value)
            while node % 2 == 0 and node != 0:
                node, last = node >> 1, last >> 1
        else:
            value = merkle.hash_node(value, step)
        node, last = node >> 1, last >> 1
    assert last == 0
    return value.hex()


def is_in_register(session: Session, leaf: Leaf) -> bool:
    """Whether an acknowledgement proves that its record is in the register."""
    found = signed_tree.acknowledge(leaf, signed_tree.current_head(session), signed_tree.SubtreeReader(session))
    key = current_key(session)
    assert key is not None
    assert found["record"] is not None
    assert found["salt"] is not None
    commitment = commit(bytes.fromhex(found["salt"]), canonical(found["record"]))
    root = follow(merkle.hash_leaf(commitment), found["leaf"], found["head"]["size"], found["path"])
    return root == found["head"]["root"] and is_signed(found["head"], key.public_key)


def test_every_record_is_proven_by_its_acknowledgement(empty_database: Database) -> None:
    write(empty_database, "a", "b", "c")
    write(empty_database, "a")
    with empty_database.read() as session:
        assert all(is_in_register(session, leaf) for leaf in session.scalars(select(Leaf)))
        assert [record["kind"] for record in log.records_of(session, "a")] == ["filed", "filed"]
        assert signed_tree.size_of(session) == 4


def test_a_transaction_that_is_rolled_back_leaves_no_leaf(empty_database: Database) -> None:
    write(empty_database, "a")

    def fail() -> None:
        with empty_database.write() as session:
            log.record(session, RecordKind.FILED, "key", erasure="b")
            log.write_pending(session)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    write(empty_database, "c")
    with empty_database.read() as session:
        assert [leaf.erasure_id for leaf in session.scalars(select(Leaf).order_by(Leaf.index))] == ["a", "c"]


def test_the_records_of_a_transaction_are_seen_in_it(empty_database: Database) -> None:
    with empty_database.write() as session:
        log.record(session, RecordKind.FILED, "key", erasure="a")
        assert [record["kind"] for record in log.records_of(session, "a")] == ["filed"]
        log.write_pending(session)
        assert [record["kind"] for record in log.records_of(session, "a")] == ["filed"]


def test_concurrent_writers_make_one_log(empty_database: Database) -> None:
    threads = [threading.Thread(target=write, args=(empty_database, f"e{i}")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with empty_database.read() as session:
        assert signed_tree.size_of(session) == 12
        assert all(is_in_register(session, leaf) for leaf in session.scalars(select(Leaf)))


def test_proofs_exist_for_every_size_up_to_the_present_one(empty_database: Database) -> None:
    write(empty_database, "a", "b", "c")
    with empty_database.read() as session:
        assert signed_tree.prove_inclusion(session, 0, 1) == []
        assert signed_tree.prove_consistency(session, 3, 3) == []
        for call in (
            lambda: signed_tree.prove_inclusion(session, 3, 3),
            lambda: signed_tree.prove_consistency(session, 1, 4),
        ):
            with pytest.raises(NotFound):
                call()


FORGERIES = {
    "an inserted leaf": lambda session: session.add(Leaf(index=3, commitment=b"x", salt=b"", record="{}", filed=True)),
    "a deleted leaf": lambda session: session.execute(delete(Leaf).where(Leaf.index == 2)),
    "another subtree": lambda session: session.execute(update(Node).where(Node.level == 1).values(hash=b"x" * 32)),
    "a missing subtree": lambda session: session.execute(delete(Node).where(Node.level == 1)),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_nothing_is_signed_after_leaves_were_forged(empty_database: Database, forge: object) -> None:
    write(empty_database, "a", "b", "c")
    with empty_database.write() as session:
        forge(session)  # type: ignore[operator]
    with pytest.raises(Unavailable, match="was altered"):
        write(empty_database, "d")


def test_a_head_that_was_not_signed_with_the_key_is_noticed(empty_database: Database) -> None:
    write(empty_database, "a", "b", "c")
    with empty_database.write() as session:
        head = signed_tree.lock(session)
        assert head is not None
        signed_tree.store_head(session, {**head, "time": "2020-01-01T00:00:00Z"})
    with pytest.raises(Unavailable, match="signature of its last head"):
        write(empty_database, "d")


@pytest.mark.parametrize("named", ["its own id", "the genuine id", "an earlier key"])
def test_nothing_is_signed_after_the_public_key_was_exchanged(
    empty_database: Database, tmp_path: Path, named: str
) -> None:
    """Whoever can write to the database forges a leaf, signs the head with another key, and puts that key there."""
    write(empty_database, "a", "b", "c")
    (tmp_path / "forged.pem").write_text(create_key())
    forger = read_signer(tmp_path / "forged.pem")
    with empty_database.write() as session:
        key = current_key(session)
        assert key is not None
        session.execute(update(Leaf).where(Leaf.index == 2).values(commitment=b"forged"))
        session.execute(update(Node).where(Node.level == 0, Node.index == 2).values(hash=merkle.hash_leaf(b"forged")))
        head = forger.sign_head(3, merkle.find_root(3, signed_tree.SubtreeReader(session)))
        if named == "an earlier key":
            session.add(SigningKey(key_id=forger.key_id, public_key=forger.public_pem, until=0))
        else:
            key.public_key = forger.public_pem
            key.key_id = forger.key_id if named == "its own id" else key.key_id
        signed_tree.store_head(session, {**head, "key_id": key.key_id if named == "the genuine id" else forger.key_id})
    with pytest.raises(Unavailable):
        write(empty_database, "d")


@pytest.fixture
def home(make_settings: MakeSettings) -> Iterator[tuple[Database, Settings]]:
    settings = make_settings()
    for database in migrated(settings):
        yield database, settings


def with_key(settings: Settings, path: Path, previous: str) -> Database:
    """The same database, with a new key."""
    path.write_text(create_key())
    changed = settings.model_copy(
        update={
            "signing_key_file": str(path),
            "signing_key_previous_file": previous,
            "database_url": settings.database_url,
        }
    )
    return Database(changed)


def test_whoever_trusts_the_old_key_can_follow_a_rotation(home: tuple[Database, Settings], tmp_path: Path) -> None:
    database, settings = home
    write(database, "a")
    with database.read() as session:
        old = public_keys(session)
    rotated = with_key(settings, tmp_path / "new.pem", str(settings.folder / "signing.key"))
    write(rotated, "b")
    with rotated.read() as session:
        new = public_keys(session)
        head = signed_tree.current_head(session)
    [earlier] = new["earlier"]
    assert (earlier["key_id"], earlier["public_key"], earlier["until"]) == (old["key_id"], old["public_key"], 1)
    assert earlier["head"] is not None
    assert is_signed(earlier["head"], old["public_key"])
    assert earlier["rotation"]["record"] is not None
    assert earlier["rotation"]["record"]["public_key"] == new["public_key"]
    leaf = merkle.hash_leaf(bytes.fromhex(earlier["rotation"]["commitment"]))
    assert follow(leaf, 1, 2, earlier["rotation"]["path"]) == earlier["head"]["root"]
    assert (head["size"], head["key_id"]) == (3, new["key_id"])
    with pytest.raises(Unavailable, match="was replaced by"):
        write(database, "c")
    rotated.close()


@pytest.mark.parametrize("previous", ["", "lost"])
def test_a_new_key_signs_only_if_the_operator_declares_the_old_one_lost(
    home: tuple[Database, Settings], tmp_path: Path, previous: str
) -> None:
    database, settings = home
    write(database, "a")
    other = with_key(settings, tmp_path / "new.pem", previous)
    if previous:
        write(other, "b")
        with other.read() as session:
            [earlier] = public_keys(session)["earlier"]
        assert earlier["head"] is None
    else:
        with pytest.raises(Unavailable, match="AMEND_SIGNING_KEY_PREVIOUS_FILE"):
            write(other, "b")
    other.close()
