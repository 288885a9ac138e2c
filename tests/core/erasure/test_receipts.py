"""Receipts and requests: what an operator can forge, and what reveals it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core import clock
from core.database import Database
from core.erasure import decisions, queries, receipts
from core.erasure.receipts import write_files
from core.erasure.verification import find_strays, verify
from core.errors import Unavailable
from core.register import files, log, merkle, signed_tree
from core.register.lag import require_current
from core.register.record_retention import expire_records
from core.register.records import PendingLeaf, canonical, commit, stored_entry
from core.register.signing import Head, Signer, create_key, is_signature, pae, read_signer, signer_of
from core.register.verification import Flaw, check_older_head
from core.settings import Settings
from core.tables.audit import Action, AuditEntry
from core.tables.bookkeeping import Metadata
from core.tables.erasures import Erasure, ErasureState, Identifier, Part, Receipt
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.register import Leaf, Node, RecordKind, SigningKey
from core.versions.store import Store
from tests.clock import VirtualClock
from tests.core.conftest import MakeSettings, migrated
from tests.core.erasure.erasure_helpers import ask, change, erase_nobody, find_erasure, give, somebody, store_of
from tests.core.ledger.reference_ledger import new_model


@dataclass
class Installation:
    """A database and its store, with three receipts, a refused, a held and an open request."""

    database: Database
    store: Store
    model: Model
    refused: str
    held: str
    open: str

    def verify(self, *older: Head) -> list[Flaw]:
        with self.database.read() as session:
            found = verify(session, self.store)
            for head in older:
                found += check_older_head(session, head["size"], head["root"])
            return found

    def head(self) -> Head:
        with self.database.read() as session:
            return signed_tree.current_head(session)


def populate(database: Database) -> Installation:
    model, people = new_model(database), [somebody() for _ in range(3)]
    for person in people:
        give(database, model, person, f"example of {person}")
    for _ in range(3):
        erase_nobody(database)
    refused, held, going = (
        ask(database, person, hold=hold).id for person, hold in zip(people, (True, True, False), strict=True)
    )
    change(database, refused, lambda session, erasure: decisions.refuse(session, erasure, "a legal duty", "key"))
    change(database, going, lambda session, erasure: decisions.extend(session, erasure, "complex", "key"))
    store = store_of(database)
    write_files(database, store)
    return Installation(database, store, model, refused, held, going)


@pytest.fixture
def installation(empty_database: Database) -> Installation:
    return populate(empty_database)


@pytest.fixture(scope="module")
def shared(make_settings: MakeSettings) -> Iterator[Installation]:
    """For tests that leave the database and the store as they are."""
    for database in migrated(make_settings()):
        yield populate(database)


class Undo(Exception):
    """Rolls a transaction back."""


def verify_forged(installation: Installation, folder: Path, forge: Callable[[Session, Store], Any]) -> list[Flaw]:
    """What the verification finds after a forgery of the database and a copy of the store, which is then undone."""
    shutil.copytree(installation.store.root, folder / "store")
    store, found = Store(str(folder / "store")), None
    with suppress(Undo), installation.database.write() as session:
        forge(session, store)
        session.flush()
        found = verify(session, store)
        raise Undo
    assert found is not None
    return found


def last_receipt(session: Session) -> Receipt:
    return session.scalars(select(Receipt).order_by(Receipt.number.desc()).limit(1)).one()


def rewrite(session: Session, receipt: Receipt, **predicate: Any) -> None:
    """Alter what a receipt says, as whoever can write to the database."""
    statement = json.loads(receipt.payload)
    statement["predicate"].update(predicate)
    receipt.payload = json.dumps(statement).encode()


def truncate(session: Session, store: Store, size: int) -> None:
    """Delete the leaves after the first `size`, with their files."""
    session.execute(delete(Leaf).where(Leaf.index >= size))
    for node in session.scalars(select(Node)):
        if (node.index + 1) << node.level > size:
            session.delete(node)
    for index, name in files.list_files(store).items():
        if index >= size:
            store.delete(name)


def delete_last_receipt(session: Session, store: Store) -> None:
    receipt = last_receipt(session)
    store.delete(receipts.name_of(receipt.number))
    session.execute(delete(Erasure).where(Erasure.id == receipt.erasure_id))
    session.delete(receipt)


def delete_last_receipt_and_leaf(session: Session, store: Store) -> None:
    delete_last_receipt(session, store)
    truncate(session, store, last_receipt(session).leaf + 1)


def rewrite_last_receipt(session: Session, _: Store) -> None:
    rewrite(session, last_receipt(session), found=99)


def rewrite_last_receipt_and_file(session: Session, store: Store) -> None:
    receipt = last_receipt(session)
    rewrite(session, receipt, found=99)
    store.write(receipts.name_of(receipt.number), json.dumps(receipts.file_content(receipt)).encode())


def invent_receipt(session: Session, _: Store) -> None:
    copy = {c.key: getattr(last_receipt(session), c.key) for c in Receipt.__table__.columns}
    session.add(Receipt(**{**copy, "number": 4, "leaf": 99}))


def delete_files(_: Session, store: Store) -> None:
    for name in list(files.list_files(store).values())[1:]:
        store.delete(name)


def delete_receipt_files(_: Session, store: Store) -> None:
    for name in store.names(receipts.FOLDER)[1:]:
        store.delete(name)


def alter_file(_: Session, store: Store) -> None:
    store.write(files.name_of(0), b"{")


def alter_record(session: Session, _: Store) -> None:
    leaf = session.get_one(Leaf, 0)
    assert leaf.record is not None
    leaf.record = leaf.record.replace("key", "boss")


def alter_record_and_commitment(session: Session, _: Store) -> None:
    leaf = session.get_one(Leaf, 0)
    alter_record(session, _)
    leaf.commitment = commit(leaf.salt or b"", leaf.record or "")


def delete_record(session: Session, _: Store) -> None:
    session.execute(update(Leaf).where(Leaf.index == 0).values(record=None, salt=None))


def replace_record(text: str) -> Callable[[Session, Store], None]:
    """Put something into the database that Amend cannot have written."""

    def forge(session: Session, _: Store) -> None:
        session.get_one(Leaf, 0).record = text

    return forge


def invent_leaf(session: Session, _: Store) -> None:
    """A leaf whose commitment is right, and whose record lacks all fields but one."""
    leaf = session.get_one(Leaf, 0)
    leaf.record = canonical({"kind": RecordKind.COMPLETED})
    leaf.commitment = commit(leaf.salt or b"", leaf.record)


def rebuild_without_key(session: Session, store: Store) -> None:
    """Rebuild the whole register with false dates; the new head is signed with another key."""
    path = Path(store.root).parent / "forged.pem"
    path.write_text(create_key())
    rebuild(session, store, read_signer(path))


def rebuild_and_exchange_key(session: Session, store: Store) -> None:
    """The same; the database names the other key as that of the register."""
    session.execute(delete(SigningKey))
    rebuild_without_key(session, store)
    signer = read_signer(Path(store.root).parent / "forged.pem")
    session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_pem))
    resign_receipts(session, store, signer)


def rebuild_and_exchange_key_under_its_id(session: Session, store: Store) -> None:
    """The same; the database has the other key under the id of the genuine one."""
    key = session.scalars(select(SigningKey)).one()
    rebuild_without_key(session, store)
    signer = read_signer(Path(store.root).parent / "forged.pem")
    key.public_key = signer.public_pem
    head = signed_tree.newest_head(session)
    assert head is not None
    signed_tree.store_head(session, {**head, "key_id": key.key_id})


def resign_receipts(session: Session, store: Store, signer: Signer) -> None:
    for receipt in session.scalars(select(Receipt)):
        receipt.key_id, receipt.signature = signer.key_id, signer.sign(pae(receipts.PAYLOAD_TYPE, receipt.payload))
        store.write(receipts.name_of(receipt.number), json.dumps(receipts.file_content(receipt)).encode())


def invent_earlier_key(session: Session, store: Store) -> None:
    """A key that no leaf replaced, so that receipts could be signed with it."""
    path = Path(store.root).parent / "forged.pem"
    path.write_text(create_key())
    signer = read_signer(path)
    session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_pem, until=1))
    resign_receipts(session, store, signer)


def write_leaf(store: Store, leaf: Leaf) -> None:
    """Write the file of an altered leaf, with the proof that it had."""
    content = {**(files.read_leaf(store, leaf.index) or {}), **stored_entry(leaf)}
    store.write(files.name_of(leaf.index), json.dumps(content).encode())


def alter_proof(_: Session, store: Store) -> None:
    content = files.read_leaf(store, 1) or {}
    store.write(files.name_of(1), json.dumps({**content, "path": ["00" * 32]}).encode())


def alter_head_of_receipt(session: Session, store: Store) -> None:
    receipt = last_receipt(session)
    receipt.head = {**receipt.head, "root": "00" * 32}
    store.write(receipts.name_of(receipt.number), json.dumps(receipts.file_content(receipt)).encode())


def delete_record_and_backdate_it(session: Session, store: Store) -> None:
    """Delete the record of a leaf in the middle, as if it had expired."""
    last = session.scalars(select(Leaf).order_by(Leaf.index.desc()).limit(1)).one()
    last.record, last.salt, last.created_at = None, None, last.created_at - timedelta(days=4000)
    write_leaf(store, last)


def backdate_leaf(session: Session, _: Store) -> None:
    """Have Amend itself delete the first record, as if it had expired."""
    session.get_one(Leaf, 0).created_at -= timedelta(days=4000)


def delete_first_records_and_backdate_them(session: Session, store: Store) -> None:
    """Delete the records up to the first receipt's, as if they had expired."""
    first = session.scalars(select(Receipt.leaf).order_by(Receipt.number).limit(1)).one()
    for leaf in session.scalars(select(Leaf).where(Leaf.index <= first)):
        leaf.record, leaf.salt, leaf.created_at = None, None, leaf.created_at - timedelta(days=4000)
        write_leaf(store, leaf)


def rebuild(session: Session, store: Store, signer: Signer) -> None:
    """Make the register anew with false dates and without the completed requests, as if they had never been there."""
    kept = [json.loads(leaf.record or "{}") for leaf in session.scalars(select(Leaf).order_by(Leaf.index))]
    for table in (Leaf, Node, Receipt):
        session.execute(delete(table))
    for erasure in session.scalars(select(Erasure)):
        if erasure.receipt:
            session.delete(erasure)
        elif erasure.completed_at:
            erasure.completed_at = datetime(2020, 1, 1, tzinfo=UTC)
    for name in (*store.names(files.FOLDER), *store.names(receipts.FOLDER)):
        store.delete(name)
    records = [{**r, "at": "2020-01-01T00:00:00Z"} for r in kept if not is_completed(r, kept)]
    session.get_one(Metadata, signed_tree.LOCK).value = b""
    session.flush()
    signed_tree.append(session, [PendingLeaf(record) for record in records], 0, signer)
    session.flush()
    session.execute(update(Leaf).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))


def is_completed(record: dict[str, Any], records: list[dict[str, Any]]) -> bool:
    done = {r["erasure"] for r in records if r["kind"] == RecordKind.COMPLETED}
    return record["erasure"] in done


FORGERIES: dict[str, Callable[[Session, Store], None]] = {
    "delete the last receipt with its request and file": delete_last_receipt,
    "delete the last receipt and its leaf": delete_last_receipt_and_leaf,
    "rewrite the last receipt": rewrite_last_receipt,
    "rewrite the last receipt and its file": rewrite_last_receipt_and_file,
    "append an invented receipt": invent_receipt,
    "delete all files but one": delete_files,
    "delete all files of receipts but one": delete_receipt_files,
    "alter a file": alter_file,
    "alter the proof in a file": alter_proof,
    "alter the head of a receipt": alter_head_of_receipt,
    "alter the record of an action": alter_record,
    "alter a record and its commitment": alter_record_and_commitment,
    "delete a record": delete_record,
    "delete a record and backdate its leaf": delete_record_and_backdate_it,
    "backdate a leaf": backdate_leaf,
    "delete the first records and backdate their leaves": delete_first_records_and_backdate_them,
    "a record that is not JSON": replace_record("{"),
    "a record that is a list": replace_record("[1]"),
    "a record that is null": replace_record("null"),
    "a record without fields": replace_record("{}"),
    "an incomplete record with its commitment": invent_leaf,
    "rebuild the register with another key": rebuild_without_key,
    "rebuild the register, and exchange the public key": rebuild_and_exchange_key,
    "rebuild the register, and exchange the public key under its id": rebuild_and_exchange_key_under_its_id,
    "invent an earlier key": invent_earlier_key,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_an_operator_without_the_key_cannot_forge_the_past(
    shared: Installation, tmp_path: Path, forge: Callable[[Session, Store], None]
) -> None:
    assert shared.verify() == []
    assert verify_forged(shared, tmp_path, forge)


@pytest.mark.parametrize("head", [b"{", b"{}", b"[1]", b'{"size": "3"}'])
def test_a_head_that_cannot_be_read_is_reported(shared: Installation, tmp_path: Path, head: bytes) -> None:
    def forge(session: Session, _: Store) -> None:
        session.get_one(Metadata, signed_tree.LOCK).value = head

    with pytest.raises(Unavailable, match="was altered"):
        verify_forged(shared, tmp_path, forge)


def test_the_oldest_record_can_be_deleted_as_if_it_had_expired(shared: Installation, tmp_path: Path) -> None:
    """Nothing in the register shows how old it is; its commitment, and a copy that somebody else has, remain."""

    def forge(session: Session, store: Store) -> None:
        first = session.get_one(Leaf, 0)
        first.record, first.salt, first.created_at = None, None, first.created_at - timedelta(days=4000)
        write_leaf(store, first)

    assert verify_forged(shared, tmp_path, forge) == []


RECEIVED = ErasureState.RECEIVED
EDITS: dict[str, Callable[[Session, Installation], Any]] = {
    "the reason of a refusal": lambda s, i: setattr(s.get_one(Erasure, i.refused), "refusal", "another"),
    "a refusal to a completion": lambda s, i: setattr(s.get_one(Erasure, i.refused), "state", ErasureState.COMPLETED),
    "the due date of an open request": lambda s, i: move_due_date(s, i.open),
    "the date of receipt": lambda s, i: move_receipt(s, i.held),
    "the person": lambda s, i: setattr(s.get_one(Erasure, i.open), "token", "0" * 64),
    "an open request to a refused one": lambda s, i: setattr(s.get_one(Erasure, i.open), "state", ErasureState.REFUSED),
    "an open request away": lambda s, i: (
        s.execute(delete(Part).where(Part.erasure_id == i.open)),
        s.execute(delete(Erasure).where(Erasure.id == i.open)),
    ),
    "a request that nobody made": lambda s, i: invent_request(s, i.open),
    "the day of a refusal": lambda s, i: end_earlier(s, i.refused),
    "the day of a completion": lambda s, i: end_earlier(s, last_receipt(s).erasure_id),
    "a held request to one in progress": lambda s, i: setattr(s.get_one(Erasure, i.held), "state", RECEIVED),
    "the person of a refused request": lambda s, i: s.execute(
        delete(Identifier).where(Identifier.erasure_id == i.refused)
    ),
    "another identifier": lambda s, i: s.add(Identifier(erasure_id=i.open, token="0" * 64, subject=b"somebody")),
    "a missing identifier": lambda s, i: s.execute(delete(Identifier).where(Identifier.erasure_id == i.open)),
    "the hash by which a person's examples are found": lambda s, i: exchange_subject(s, i.open, b"somebody else"),
    "that hash away": lambda s, i: exchange_subject(s, i.held, None),
    "an open request to a held one": lambda s, i: setattr(s.get_one(Erasure, i.open), "state", ErasureState.HELD),
    "a held request to an unmatched one": lambda s, i: setattr(
        s.get_one(Erasure, i.held), "state", ErasureState.UNMATCHED
    ),
    "the reason of an extension": lambda s, i: setattr(s.get_one(Erasure, i.open), "extension", "another"),
    "a refusal of an open request": lambda s, i: setattr(s.get_one(Erasure, i.open), "refusal", "no"),
    "somebody else's receipt": lambda s, i: setattr(s.get_one(Erasure, i.refused), "receipt", 1),
    "the request of an action": lambda s, i: s.execute(
        update(Leaf).where(Leaf.erasure_id == i.held, Leaf.record.like('%"held"%')).values(erasure_id=i.open)
    ),
}


def exchange_subject(session: Session, id: str, subject: bytes | None) -> None:
    session.execute(update(Identifier).where(Identifier.erasure_id == id).values(subject=subject))


def end_earlier(session: Session, id: str) -> None:
    erasure = session.get_one(Erasure, id)
    assert erasure.completed_at is not None
    erasure.completed_at -= timedelta(days=30)


def move_due_date(session: Session, id: str) -> None:
    session.get_one(Erasure, id).due_at += timedelta(days=30)


def move_receipt(session: Session, id: str) -> None:
    session.get_one(Erasure, id).received_at += timedelta(days=30)


def invent_request(session: Session, id: str) -> None:
    copy = {c.key: getattr(session.get_one(Erasure, id), c.key) for c in Erasure.__table__.columns}
    session.add(Erasure(**{**copy, "id": "0" * 36}))


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_edited_requests_are_found(
    shared: Installation, tmp_path: Path, edit: Callable[[Session, Installation], Any]
) -> None:
    assert shared.verify() == []
    assert verify_forged(shared, tmp_path, lambda session, _: edit(session, shared))


def test_only_an_older_head_reveals_that_the_holder_of_the_key_rebuilt_the_register(
    installation: Installation,
) -> None:
    older = installation.head()
    assert installation.verify(older) == []
    with installation.database.write() as session:
        rebuild(session, installation.store, signer_of(session.info["settings"]))
    write_files(installation.database, installation.store)
    assert installation.verify() == []
    assert [flaw.problem.partition(":")[0] for flaw in installation.verify(older)] == ["truncated"]
    for _ in range(5):
        erase_nobody(installation.database)
    write_files(installation.database, installation.store)
    assert [flaw.problem.partition(":")[0] for flaw in installation.verify(older)] == ["rewritten"]


def test_only_an_older_head_reveals_an_earlier_state_of_database_and_store(installation: Installation) -> None:
    """An operator without the key puts back an earlier head, which was signed, and deletes everything after it."""
    earlier = installation.head()
    erase_nobody(installation.database)
    write_files(installation.database, installation.store)
    older = installation.head()
    with installation.database.write() as session:
        delete_last_receipt(session, installation.store)
        truncate(session, installation.store, earlier["size"])
        signed_tree.store_head(session, earlier)
    assert installation.verify() == []
    assert installation.verify(earlier) == []
    assert [flaw.problem.partition(":")[0] for flaw in installation.verify(older)] == ["truncated"]


def test_the_register_does_not_cover_examples_versions_and_the_audit_log(installation: Installation) -> None:
    """A limit that the documents state: the register is about requests and receipts."""
    with installation.database.write() as session:
        session.add(AuditEntry(actor="key", action=Action.EXAMPLES_ADDED))
        session.flush()
        assert session.execute(update(Example).values(weight=7.0)).rowcount > 0
        assert session.execute(delete(AuditEntry)).rowcount > 0
        assert session.execute(update(Part).values(examples=99)).rowcount > 0
        assert session.execute(update(Erasure).values(near_matches=9, reason="another")).rowcount > 0
    give(installation.database, installation.model, somebody(), "put back")
    assert installation.verify(installation.head()) == []


def test_a_receipt_is_a_signed_statement_that_the_register_contains(installation: Installation) -> None:
    with installation.database.read() as session:
        receipt = receipts.find_receipt(session, 2)
        envelope = receipts.envelope_of(session, receipt)
        key = session.get_one(SigningKey, receipt.key_id).public_key
        filed = log.leaves_of(session, receipt.erasure_id)[0]
    payload = base64.b64decode(envelope["payload"])
    [signature] = envelope["signatures"]
    assert is_signature(pae(envelope["payloadType"], payload), signature["sig"], key)
    statement = json.loads(payload)
    assert statement["subject"] == [
        {"name": f"erasure/{receipt.erasure_id}", "digest": {"sha256": filed.commitment.hex()}}
    ]
    register = envelope["register"]
    assert register["record"] is not None
    assert (register["record"]["receipt"], register["record"]["statement"]) == (2, receipt.sha256)
    assert register["head"]["size"] == register["leaf"] + 1


def test_files_are_written_once_and_agree(installation: Installation) -> None:
    assert write_files(installation.database, installation.store) == 0
    erase_nobody(installation.database)
    assert installation.verify() == []  # not written yet, which is no flaw
    assert write_files(installation.database, installation.store) == 3  # filed, approved, completed
    assert installation.verify() == []


@pytest.mark.parametrize("size", ["behind", "diverged"])
def test_nothing_is_recorded_while_the_store_has_other_leaves(installation: Installation, size: str) -> None:
    count = installation.head()["size"]
    at = count if size == "behind" else count - 1
    leaf = {"leaf": at, "record": None, "salt": None, "commitment": "00" * 32}
    installation.store.write(files.name_of(at), json.dumps(leaf).encode())
    with pytest.raises(Unavailable, match="Run `amend") as caught:
        erase_nobody(installation.database)
    assert caught.value.code == f"receipts_{size}"


STRAY_CONTENTS = [b"notes", b'{"commitment": "00"}', b"[]"]


@pytest.mark.parametrize("content", STRAY_CONTENTS)
def test_a_stray_file_is_named_and_blocks_nothing(installation: Installation, content: bytes) -> None:
    size = installation.head()["size"]
    names = [files.name_of(size), files.name_of(size + 7), "register/notes.txt", "journal/notes.txt"]
    for name in names:
        installation.store.write(name, content)
    with installation.database.read() as session:
        assert find_strays(session, installation.store) == sorted(names)
        require_current(session, installation.store)
    ask(installation.database, somebody())
    write_files(installation.database, installation.store)
    assert installation.verify() == []
    with installation.database.read() as session:
        moved = f"{files.name_of(size)}.stray"
        assert find_strays(session, installation.store) == sorted([moved, *names[1:]])
    assert installation.store.get(moved) == content


@pytest.fixture
def aged(make_settings: MakeSettings) -> Any:
    settings = make_settings(register_retention="30d")
    for database in migrated(settings):
        yield populate(database), settings


def test_records_expire_and_proofs_still_verify(aged: tuple[Installation, Settings]) -> None:
    installation, settings = aged
    older = installation.head()
    assert expire_records(installation.database, settings) == 0
    with clock.use(VirtualClock(clock.now() + timedelta(days=31))):
        kept = {installation.held, installation.open}
        with installation.database.read() as session:
            ended = [leaf for leaf in session.scalars(select(Leaf)) if leaf.erasure_id not in kept]
        assert expire_records(installation.database, settings) == len(ended) > 0
        write_files(installation.database, installation.store)
        assert installation.verify(older) == []
        erase_nobody(installation.database)
        with installation.database.read() as session:
            trail = queries.trail_of(session, find_erasure(installation.database, installation.refused))
            envelope = receipts.envelope_of(session, receipts.find_receipt(session, 1))
        assert trail == []
        entry = envelope["register"]
        assert (entry["record"], entry["salt"]) == (None, None)
        assert len(entry["path"]) == len(merkle.prove_inclusion(entry["leaf"], entry["head"]["size"], lambda *_: b""))
    content = files.read_leaf(installation.store, entry["leaf"])
    assert content is not None
    assert (content["leaf"], content["record"], content["salt"]) == (entry["leaf"], None, None)
    assert content["commitment"] == entry["commitment"]


def test_records_are_written_without_ambiguity() -> None:
    assert canonical({"b": "ä", "a": [1, None, True]}) == '{"a":[1,null,true],"b":"ä"}'


def test_no_leaf_is_filed_before_its_receipt(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure is completed while another process writes files: without the receipt, a restore could not replay."""
    store, file_leaves = store_of(empty_database), files.write_missing
    first = ask(empty_database, somebody()).id

    def complete_and_file(*arguments: Any) -> int:
        monkeypatch.setattr(files, "write_missing", file_leaves)
        change(empty_database, first, lambda session, erasure: decisions.approve(session, erasure, "key"))
        return file_leaves(*arguments)

    monkeypatch.setattr(files, "write_missing", complete_and_file)
    write_files(empty_database, store)
    assert find_erasure(empty_database, first).receipt == 1
    for _ in range(2):
        with empty_database.read() as session:
            leaf = session.scalars(select(Leaf).join(Receipt, Receipt.leaf == Leaf.index)).one()
        assert store.exists(receipts.name_of(1)) or not leaf.filed
        write_files(empty_database, store)
    assert store.exists(receipts.name_of(1))
