"""A database that was restored from a backup does again what its receipts in the store tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core import clock
from core.database import Database
from core.erasure import receipts
from core.erasure.decisions import approve, hold, lift, refuse, withdraw
from core.erasure.queries import find_restriction
from core.erasure.request_details import RequestDetails
from core.erasure.requests import restrict_processing
from core.erasure.verification import verify
from core.errors import Conflict, Unavailable
from core.ledger.subject_hashes import subject_hash
from core.lifecycle.replay_after_restore import replay
from core.register import files, merkle, signed_tree
from core.register.lag import require_current
from core.register.record_retention import expire_records
from core.register.records import canonical, commit
from core.register.signing import Signer, create_key, read_signer
from core.tables.bookkeeping import Metadata
from core.tables.erasures import Erasure, ErasureState, Identifier, Part, Receipt
from core.tables.journal import JournalEntry, JournalFile
from core.tables.models import Model
from core.tables.register import Leaf, Node, SigningKey
from core.versions.store import Store
from tests.clock import VirtualClock
from tests.core.conftest import MakeSettings, migrated
from tests.core.erasure.erasure_helpers import (
    ask,
    change,
    erase_nobody,
    find_erasure,
    give,
    parts,
    reach,
    somebody,
    store_of,
)
from tests.core.ledger.reference_ledger import SECRET, new_model, stored

COMPLETED = ErasureState.COMPLETED


@pytest.fixture
def store(empty_database: Database) -> Store:
    return store_of(empty_database)


def again(database: Database, store: Store) -> tuple[int, list[str]]:
    with database.write() as session:
        done = replay(session, store, SECRET, "key", None)
    return done.receipts, done.erasures


def sound(database: Database, store: Store) -> bool:
    with database.read() as session:
        return not verify(session, store)


@contextmanager
def forgotten(database: Database, store: Store) -> Iterator[None]:
    """What happens here is in the store's register, and not in the database afterwards."""
    with database.read() as session:
        before = {row.id for row in session.query(Erasure)}
        numbers = {row.number for row in session.query(Receipt)}
        head = session.get_one(Metadata, signed_tree.LOCK).value
        size = signed_tree.size_of(session)
        noted = set(session.scalars(select(JournalFile.name)))
    yield
    receipts.write_files(database, store)
    with database.write() as session:
        session.execute(delete(JournalEntry).where(JournalEntry.file.not_in(noted)))
        session.execute(delete(JournalFile).where(JournalFile.name.not_in(noted)))
        session.execute(delete(Receipt).where(Receipt.number.not_in(numbers)))
        session.execute(delete(Part).where(Part.erasure_id.not_in(before)))
        session.execute(delete(Erasure).where(Erasure.id.not_in(before)))
        session.execute(delete(Leaf).where(Leaf.index >= size))
        for node in session.scalars(select(Node)):
            if (node.index + 1) << node.level > size:
                session.delete(node)
        session.get_one(Metadata, signed_tree.LOCK).value = head


def test_nothing_is_done_while_nothing_is_missing(empty_database: Database, store: Store) -> None:
    erase_nobody(empty_database)
    receipts.write_files(empty_database, store)
    assert again(empty_database, store) == (0, [])
    assert sound(empty_database, store)


def test_a_person_who_returned_is_erased_again_and_others_are_not(empty_database: Database, store: Store) -> None:
    model, person, other = new_model(empty_database), somebody(), somebody()
    erase_nobody(empty_database)
    with forgotten(empty_database, store):
        erase_nobody(empty_database, person)
        erase_nobody(empty_database)
    give(empty_database, model, person, "a", "b")
    give(empty_database, model, other, "c")
    count, [id] = again(empty_database, store)
    assert count == 2
    assert (parts(empty_database, id)[model.name].examples, stored(empty_database, model).train_count) == (2, 1)
    assert sound(empty_database, store)
    reach(empty_database, id, model, COMPLETED)
    receipts.write_files(empty_database, store)
    assert find_erasure(empty_database, id).receipt == 4
    assert sound(empty_database, store)
    assert again(empty_database, store) == (0, [])


def test_replay_completes_an_erasure_that_was_open_at_the_time_of_the_backup(
    empty_database: Database, store: Store
) -> None:
    """The restored database knows the erasure as open, the store has its receipt."""
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    id = ask(empty_database, person).id
    with forgotten(empty_database, store):
        reach(empty_database, id, model, COMPLETED)
    with empty_database.write() as session:
        put_back(session, id, model, person, ErasureState.RECEIVED)
    _, begun = again(empty_database, store)
    for new in begun:
        reach(empty_database, new, model, COMPLETED)
        assert find_erasure(empty_database, new).state is COMPLETED
    receipts.write_files(empty_database, store)
    assert sound(empty_database, store)


def test_a_request_that_was_held_at_the_backup_is_repeated(empty_database: Database, store: Store) -> None:
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    held = ask(empty_database, person, hold=True)
    assert held.state is ErasureState.HELD
    with forgotten(empty_database, store):
        change(empty_database, held.id, lambda session, erasure: approve(session, erasure, "key"))
        reach(empty_database, held.id, model, COMPLETED)
    with empty_database.write() as session:
        put_back(session, held.id, model, person, ErasureState.HELD)
    count, [new] = again(empty_database, store)
    first, second = find_erasure(empty_database, held.id), find_erasure(empty_database, new)
    assert (count, first.state, first.receipt) == (1, COMPLETED, 1)
    assert (second.state, second.repeats) == (ErasureState.RECEIVED, held.id)
    assert (second.received_at, second.due_at) == (first.received_at, first.due_at)
    assert parts(empty_database, new)[model.name].state is ErasureState.RECEIVED


def test_a_person_who_asked_again_has_both_requests_back(empty_database: Database, store: Store) -> None:
    model, person = new_model(empty_database), somebody()
    erase_nobody(empty_database)
    with forgotten(empty_database, store):
        first = ask(empty_database, person)
        change(empty_database, first.id, lambda session, erasure: approve(session, erasure, "key"))
        second = ask(empty_database, person, hold=True)
    give(empty_database, model, person, "a")
    count, begun = again(empty_database, store)
    assert (count, begun) == (1, [second.id])
    assert find_erasure(empty_database, first.id).state is COMPLETED
    assert find_erasure(empty_database, second.id).state is ErasureState.RECEIVED
    assert stored(empty_database, model).train_count == 0


@pytest.mark.parametrize("by_second_person", [False, True])
def test_replay_does_not_approve_a_request_that_needs_a_second_person(
    empty_database: Database, store: Store, monkeypatch: pytest.MonkeyPatch, by_second_person: bool
) -> None:
    """A completed erasure is joined with the request that the person made later. That one is still to be approved."""
    if by_second_person:
        with empty_database.read() as session:
            monkeypatch.setitem(session.info["settings"].__dict__, "erasure_approval", "second")
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        first = ask(empty_database, person)
        change(empty_database, first.id, lambda session, erasure: approve(session, erasure, "other key"))
        second = ask(empty_database, person, hold=True)
    give(empty_database, model, person, "a")
    assert again(empty_database, store) == (1, [second.id])
    state = ErasureState.HELD if by_second_person else ErasureState.RECEIVED
    assert (find_erasure(empty_database, second.id).state, parts(empty_database, second.id)[model.name].state) == (
        state,
        state,
    )
    assert stored(empty_database, model).train_count == 0
    for decide in (withdraw, partial(refuse, reason="unfounded")):
        with pytest.raises(Conflict, match="completed before a restore"):
            change(empty_database, second.id, partial(decide, by="key"))
    if by_second_person:
        with pytest.raises(Conflict, match="second person"):
            change(empty_database, second.id, lambda session, erasure: approve(session, erasure, "key"))
        change(empty_database, second.id, lambda session, erasure: approve(session, erasure, "other key"))
    reach(empty_database, second.id, model, COMPLETED)
    assert find_erasure(empty_database, second.id).state is COMPLETED


def put_back(session: Session, id: str, model: Model, person: str, state: ErasureState) -> None:
    """Make an erasure as open as it was when the backup was made."""
    erasure = session.get_one(Erasure, id)
    erasure.state = state
    identifier = session.scalars(select(Identifier).where(Identifier.erasure_id == id)).one()
    identifier.subject = subject_hash(person, SECRET)
    erasure.receipt = erasure.completed_at = None
    session.get_one(Part, (id, model.id)).state = state


def test_nothing_takes_the_place_of_a_missing_receipt(empty_database: Database, store: Store) -> None:
    """After the restore, nothing is recorded until the missing leaves are back."""
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        erase_nobody(empty_database, person)
    give(empty_database, model, person, "a")
    with pytest.raises(Unavailable, match="amend erasures replay"):
        erase_nobody(empty_database)
    count, begun = again(empty_database, store)
    assert (count, len(begun)) == (1, 1)
    assert stored(empty_database, model).train_count == 0
    erase_nobody(empty_database)
    receipts.write_files(empty_database, store)
    assert sound(empty_database, store)


@pytest.mark.parametrize("content", [b"{", json.dumps({"number": 1, "subject_token": "x"}).encode()])
@pytest.mark.parametrize("folder", [receipts.FOLDER, files.FOLDER])
def test_nothing_is_taken_from_damaged_files(
    empty_database: Database, store: Store, folder: str, content: bytes
) -> None:
    with forgotten(empty_database, store):
        erase_nobody(empty_database)
    name = store.names(folder)[-1]
    store.write(name, content)
    with pytest.raises(Conflict, match=name):
        again(empty_database, store)
    with empty_database.read() as session:
        assert signed_tree.size_of(session) == 0


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_file_does_not_hide_the_leaves_that_follow_it(empty_database: Database, store: Store, lost: int) -> None:
    """Otherwise the model would be trained on an erased person's data again."""
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        erase_nobody(empty_database, person)
    give(empty_database, model, person, "a")
    with empty_database.write() as session:  # the journal was lost, too
        for name in store.names("journal"):
            store.delete(name)
    store.delete(store.names(files.FOLDER)[lost])
    with empty_database.read() as session, pytest.raises(Unavailable, match="amend erasures replay"):
        require_current(session, store)
    with pytest.raises(Conflict, match=files.name_of(lost)):
        again(empty_database, store)


def forge_record(store: Store, name: str, signer: Signer) -> None:
    """Alter what the leaf records, with a commitment that fits."""
    content = json.loads(store.get(name))
    content["record"]["at"] = "2020-01-01T00:00:00Z"
    content["commitment"] = commit(bytes.fromhex(content["salt"]), canonical(content["record"])).hex()
    store.write(name, json.dumps(content).encode())


def forge_record_and_head(store: Store, name: str, signer: Signer) -> None:
    """The same, with a proof in a register of one leaf that somebody else signed."""
    forge_record(store, name, signer)
    content = json.loads(store.get(name))
    root = merkle.hash_leaf(bytes.fromhex(content["commitment"]))
    store.write(name, json.dumps({**content, "path": [], "head": signer.sign_head(1, root)}).encode())


def remove_proofs(store: Store, name: str, signer: Signer) -> None:
    """Alter a record, and remove everything that contradicts it."""
    forge_record(store, name, signer)
    for other in store.names(files.FOLDER):
        content = json.loads(store.get(other))
        store.write(other, json.dumps({**content, "path": None, "head": None}).encode())


def append_leaf(store: Store, name: str, signer: Signer) -> None:
    """Add a leaf, with the proof of another one."""
    content = json.loads(store.get(name))
    store.write(files.name_of(content["leaf"] + 1), json.dumps({**content, "leaf": content["leaf"] + 1}).encode())


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("forge", [forge_record, forge_record_and_head, remove_proofs, append_leaf])
def test_nothing_is_signed_that_was_forged_in_the_store(
    empty_database: Database,
    store: Store,
    tmp_path: Path,
    forge: Callable[[Store, str, Signer], None],
    known: bool,
) -> None:
    """Whoever can write to the database and the store goes back to an earlier state, and has a replay repeat a forged
    history; also if the database has the forger's key."""
    with forgotten(empty_database, store):
        erase_nobody(empty_database)
    (tmp_path / "forged.pem").write_text(create_key())
    forger = read_signer(tmp_path / "forged.pem")
    if known:
        with empty_database.write() as session:
            session.add(SigningKey(key_id=forger.key_id, public_key=forger.public_pem, until=0))
    forge(store, store.names(files.FOLDER)[-1], forger)
    with pytest.raises(Conflict, match="was altered"):
        again(empty_database, store)


def test_leaves_are_restored_if_the_last_file_of_a_transaction_was_not_written(
    empty_database: Database, store: Store
) -> None:
    """A process was killed meanwhile; the files before it have a path to a head that includes the missing leaf."""
    with forgotten(empty_database, store):
        erase_nobody(empty_database)
        ask(empty_database, somebody())
    *_, last = store.names(files.FOLDER)
    store.delete(last)
    assert again(empty_database, store) == (1, [])
    receipts.write_files(empty_database, store)
    assert sound(empty_database, store)


def test_a_backup_from_before_the_key_was_replaced_is_brought_up_to_date(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """The new key signed a head that includes the leaf about its predecessor, which no longer exists."""
    settings = make_settings()
    for database in migrated(settings):
        store = store_of(database)
        erase_nobody(database)
        receipts.write_files(database, store)
        (tmp_path / "new.pem").write_text(create_key())
        old = {"signing_key_previous_file": str(settings.folder / "signing.key")}
        new = {"signing_key_file": str(tmp_path / "new.pem"), "database_url": settings.database_url}
        rotated = Database(settings.model_copy(update={**old, **new}))
        with forgotten(database, store):
            erase_nobody(rotated)
            receipts.write_files(rotated, store)
        rotated.close()
        with database.write() as session:
            session.execute(delete(SigningKey).where(SigningKey.until.is_(None)))
            session.execute(update(SigningKey).values(until=None, head=None))
        after = Database(settings.model_copy(update=new))
        assert again(after, store) == (1, [])
        receipts.write_files(after, store)
        assert sound(after, store)
        after.close()


def restrict(database: Database, person: str) -> str:
    with database.write() as session:
        filing = RequestDetails(subject_hash(person, SECRET))
        return restrict_processing(session, filing, SECRET, "key", None).id


def test_replay_restores_restrictions_and_their_ends(empty_database: Database, store: Store) -> None:
    model, kept, settled = new_model(empty_database), somebody(), somebody()
    erase_nobody(empty_database)
    with forgotten(empty_database, store):
        lasting, ended = restrict(empty_database, kept), restrict(empty_database, settled)
        with empty_database.write() as session:
            lift(session, find_restriction(session, ended), "settled", "key")
    give(empty_database, model, kept, "a", "b")
    give(empty_database, model, settled, "c")
    again(empty_database, store)
    with empty_database.read() as session:
        states = [find_restriction(session, id).state for id in (lasting, ended)]
    assert states == [ErasureState.RESTRICTED, ErasureState.LIFTED]
    assert stored(empty_database, model).train_count == 1
    receipts.write_files(empty_database, store)
    assert sound(empty_database, store)


def test_replay_restores_a_withdrawal_and_a_second_hold(empty_database: Database, store: Store) -> None:
    erase_nobody(empty_database)
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    with forgotten(empty_database, store):
        left = ask(empty_database, somebody(), hold=True).id
        change(empty_database, left, lambda session, erasure: withdraw(session, erasure, "key"))
        held = ask(empty_database, person, hold=True).id
        change(empty_database, held, lambda session, erasure: approve(session, erasure, "key"))
        change(empty_database, held, lambda session, erasure: hold(session, erasure, "key"))
    again(empty_database, store)
    states = [find_erasure(empty_database, id).state for id in (left, held)]
    assert states == [ErasureState.WITHDRAWN, ErasureState.HELD]
    assert sound(empty_database, store)


def put_back_in_progress(database: Database, id: str, model: Model) -> None:
    """Make a request with one identifier as it was when the backup was made: in progress."""
    with database.write() as session:
        erasure = session.get_one(Erasure, id)
        erasure.state = session.get_one(Part, (id, model.id)).state = ErasureState.RECEIVED
        session.execute(delete(Identifier).where(Identifier.erasure_id == id, Identifier.token != erasure.token))


def test_a_request_that_was_held_after_the_backup_is_held_again(empty_database: Database, store: Store) -> None:
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    id = ask(empty_database, person).id
    with forgotten(empty_database, store):
        change(empty_database, id, lambda session, erasure: hold(session, erasure, "key"))
    put_back_in_progress(empty_database, id, model)
    again(empty_database, store)
    assert find_erasure(empty_database, id).state is ErasureState.HELD
    assert parts(empty_database, id)[model.name].state is ErasureState.HELD
    assert sound(empty_database, store)
    change(empty_database, id, lambda session, erasure: approve(session, erasure, "key"))
    reach(empty_database, id, model, COMPLETED)
    assert find_erasure(empty_database, id).state is COMPLETED


@pytest.mark.parametrize("approved", [False, True])
def test_identifiers_that_were_added_after_the_backup_need_a_second_person(
    empty_database: Database, store: Store, monkeypatch: pytest.MonkeyPatch, approved: bool
) -> None:
    with empty_database.read() as session:
        monkeypatch.setitem(session.info["settings"].__dict__, "erasure_approval", "second")
    model, person, alias = new_model(empty_database), somebody(), somebody()
    give(empty_database, model, person, "a")
    give(empty_database, model, alias, "b")
    id = ask(empty_database, person).id
    change(empty_database, id, lambda session, erasure: approve(session, erasure, "other key"))
    with forgotten(empty_database, store):
        assert ask(empty_database, person, alias).id == id
        if approved:
            change(empty_database, id, lambda session, erasure: approve(session, erasure, "other key"))
    put_back_in_progress(empty_database, id, model)
    again(empty_database, store)
    state = ErasureState.RECEIVED if approved else ErasureState.HELD
    assert (find_erasure(empty_database, id).state, parts(empty_database, id)[model.name].state) == (state, state)
    assert stored(empty_database, model).train_count == 0
    if not approved:
        with pytest.raises(Conflict, match="second person"):
            change(empty_database, id, lambda session, erasure: approve(session, erasure, "key"))
        change(empty_database, id, lambda session, erasure: approve(session, erasure, "other key"))
    reach(empty_database, id, model, COMPLETED)
    assert find_erasure(empty_database, id).state is COMPLETED


def lose_everything(database: Database) -> None:
    """The database is empty again; the store is as it was."""
    with database.write() as session:
        for table in (Identifier, JournalEntry, JournalFile, Receipt, Part, Erasure, Leaf, Node, SigningKey):
            session.execute(delete(table))
        session.get_one(Metadata, signed_tree.LOCK).value = b""


def test_a_register_whose_key_was_replaced_returns_to_an_empty_database(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings()
    for database in migrated(settings):
        store = store_of(database)
        erase_nobody(database)
        receipts.write_files(database, store)
        (tmp_path / "new.pem").write_text(create_key())
        keys = {
            "signing_key_file": str(tmp_path / "new.pem"),
            "signing_key_previous_file": str(settings.folder / "signing.key"),
        }
        rotated = Database(settings.model_copy(update={**keys, "database_url": settings.database_url}))
        erase_nobody(rotated)
        receipts.write_files(rotated, store)
        assert sound(rotated, store)
        lose_everything(rotated)
        assert again(rotated, store) == (2, [])
        receipts.write_files(rotated, store)
        assert sound(rotated, store)
        rotated.close()


def test_records_that_have_expired_before_a_restore_are_no_flaw(make_settings: MakeSettings) -> None:
    settings = make_settings(register_retention="30d")
    for database in migrated(settings):
        store = store_of(database)
        erase_nobody(database)
        receipts.write_files(database, store)
        with clock.use(VirtualClock(clock.now() + timedelta(days=31))):
            assert expire_records(database, settings) > 0
            erase_nobody(database)
            receipts.write_files(database, store)
            assert sound(database, store)
            lose_everything(database)
            again(database, store)
            receipts.write_files(database, store)
            with database.read() as session:
                problems = [flaw.problem for flaw in verify(session, store)]
            assert [problem for problem in problems if "before the end of the retention" in problem] == []
