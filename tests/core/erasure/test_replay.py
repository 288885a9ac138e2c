"""A database that was restored from a backup does again what its receipts in the store tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete

from core.database import Database
from core.erasure import receipts
from core.erasure.replay import replay
from core.errors import Conflict
from core.ledger.batch import subject_hash
from core.tables.erasures import Erasure, ErasureState, Part, Receipt
from core.versions.store import Store
from tests.core.erasure.erasure_helpers import ask, erase_nobody, find_erasure, give, parts, reach, somebody
from tests.core.ledger.reference_ledger import SECRET, new_model, stored

COMPLETED = ErasureState.COMPLETED


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def again(database: Database, store: Store) -> tuple[int, list[str]]:
    with database.write() as session:
        return replay(session, store, SECRET, "key", None)


def sound(database: Database, store: Store) -> bool:
    with database.read() as session:
        return not receipts.verify(session, store)


@contextmanager
def forgotten(database: Database, store: Store) -> Iterator[None]:
    """What happens here is in the store's receipts, and not in the database afterwards."""
    with database.read() as session:
        before = {table: {row.id for row in session.query(table)} for table in (Erasure,)}
        numbers = {row.number for row in session.query(Receipt)}
    yield
    receipts.file_missing(database, store)
    with database.write() as session:
        session.execute(delete(Receipt).where(Receipt.number.not_in(numbers)))
        session.execute(delete(Part).where(Part.erasure_id.not_in(before[Erasure])))
        session.execute(delete(Erasure).where(Erasure.id.not_in(before[Erasure])))


def test_nothing_is_done_while_nothing_is_missing(empty_database: Database, store: Store) -> None:
    erase_nobody(empty_database)
    receipts.file_missing(empty_database, store)
    assert again(empty_database, store) == (0, [])
    assert sound(empty_database, store)


def test_a_person_who_is_back_is_erased_again_and_others_are_not(empty_database: Database, store: Store) -> None:
    model, person, other = new_model(empty_database), somebody(), somebody()
    erase_nobody(empty_database)
    with forgotten(empty_database, store):
        ask(empty_database, person)
        erase_nobody(empty_database)
    give(empty_database, model, person, "a", "b")
    give(empty_database, model, other, "c")
    count, [id] = again(empty_database, store)
    assert count == 2
    assert (parts(empty_database, id)[model.name].examples, stored(empty_database, model).train_count) == (2, 1)
    assert sound(empty_database, store)
    reach(empty_database, id, model, COMPLETED)
    receipts.file_missing(empty_database, store)
    assert find_erasure(empty_database, id).receipt == 4
    assert sound(empty_database, store)
    assert again(empty_database, store) == (0, [])


def test_a_backup_that_was_made_while_the_erasure_was_open_is_brought_to_the_same_end(
    empty_database: Database, store: Store
) -> None:
    """The restored database knows the erasure as open, the store has its receipt."""
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    id = ask(empty_database, person).id
    with forgotten(empty_database, store):
        reach(empty_database, id, model, COMPLETED)
    with empty_database.write() as session:
        erasure = session.get_one(Erasure, id)
        [told] = receipts.read_files(store).values()
        assert erasure.token == told["subject_token"]
        erasure.state, erasure.subject = ErasureState.RECEIVED, subject_hash(person, SECRET)
        erasure.receipt = erasure.completed_at = None
        session.get_one(Part, (id, model.id)).state = ErasureState.RECEIVED
    _, begun = again(empty_database, store)
    for new in begun:
        reach(empty_database, new, model, COMPLETED)
        assert find_erasure(empty_database, new).state is COMPLETED
    receipts.file_missing(empty_database, store)
    assert sound(empty_database, store)


def test_a_request_that_was_held_at_the_backup_is_approved(empty_database: Database, store: Store) -> None:
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        ask(empty_database, person)
    give(empty_database, model, person, "a")
    held = ask(empty_database, person, hold=True)
    assert held.state is ErasureState.HELD
    assert again(empty_database, store) == (1, [held.id])
    assert find_erasure(empty_database, held.id).state is ErasureState.RECEIVED
    assert parts(empty_database, held.id)[model.name].state is ErasureState.RECEIVED


def test_receipts_that_were_written_before_the_replay_hide_none(empty_database: Database, store: Store) -> None:
    """After the restore, another erasure is completed first, and takes the number of one that is missing."""
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        ask(empty_database, person)
    give(empty_database, model, person, "a")
    erase_nobody(empty_database)
    receipts.file_missing(empty_database, store)
    count, begun = again(empty_database, store)
    assert (count, len(begun)) == (1, 1)
    assert stored(empty_database, model).train_count == 0


@pytest.mark.parametrize("content", [b"{", json.dumps({"number": 1, "subject_token": "x"}).encode()])
def test_nothing_is_taken_from_damaged_receipts(empty_database: Database, store: Store, content: bytes) -> None:
    with forgotten(empty_database, store):
        erase_nobody(empty_database)
    [name] = store.names(receipts.FOLDER)
    store.write(name, content)
    with pytest.raises(Conflict, match="receipt 1"):
        again(empty_database, store)
    with empty_database.read() as session:
        assert receipts.chain(session) == []
