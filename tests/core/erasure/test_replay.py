"""A database that was restored from a backup does again what its receipts in the store tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import receipts
from core.erasure.decisions import approve
from core.erasure.replay import replay
from core.erasure.verification import verify
from core.errors import Conflict, Unavailable
from core.ledger.batch import subject_hash
from core.register import files, tree
from core.tables.bookkeeping import Metadata
from core.tables.erasures import Erasure, ErasureState, Part, Receipt
from core.tables.models import Model
from core.tables.register import Leaf, Node
from core.versions.store import Store
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
        return replay(session, store, SECRET, "key", None)


def sound(database: Database, store: Store) -> bool:
    with database.read() as session:
        return not verify(session, store)


@contextmanager
def forgotten(database: Database, store: Store) -> Iterator[None]:
    """What happens here is in the store's register, and not in the database afterwards."""
    with database.read() as session:
        before = {row.id for row in session.query(Erasure)}
        numbers = {row.number for row in session.query(Receipt)}
        head = session.get_one(Metadata, tree.LOCK).value
        size = tree.size_of(session)
    yield
    receipts.write_files(database, store)
    with database.write() as session:
        session.execute(delete(Receipt).where(Receipt.number.not_in(numbers)))
        session.execute(delete(Part).where(Part.erasure_id.not_in(before)))
        session.execute(delete(Erasure).where(Erasure.id.not_in(before)))
        session.execute(delete(Leaf).where(Leaf.index >= size))
        for node in session.scalars(select(Node)):
            if (node.index + 1) << node.level > size:
                session.delete(node)
        session.get_one(Metadata, tree.LOCK).value = head


def test_nothing_is_done_while_nothing_is_missing(empty_database: Database, store: Store) -> None:
    erase_nobody(empty_database)
    receipts.write_files(empty_database, store)
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
    receipts.write_files(empty_database, store)
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
        put_back(session, id, model, person, ErasureState.RECEIVED)
    _, begun = again(empty_database, store)
    for new in begun:
        reach(empty_database, new, model, COMPLETED)
        assert find_erasure(empty_database, new).state is COMPLETED
    receipts.write_files(empty_database, store)
    assert sound(empty_database, store)


def test_a_request_that_was_held_at_the_backup_is_approved(empty_database: Database, store: Store) -> None:
    model, person = new_model(empty_database), somebody()
    give(empty_database, model, person, "a")
    held = ask(empty_database, person, hold=True)
    assert held.state is ErasureState.HELD
    with forgotten(empty_database, store):
        change(empty_database, held.id, lambda session, erasure: approve(session, erasure, "key"))
        reach(empty_database, held.id, model, COMPLETED)
    with empty_database.write() as session:
        put_back(session, held.id, model, person, ErasureState.HELD)
    assert again(empty_database, store) == (1, [held.id])
    assert find_erasure(empty_database, held.id).state is ErasureState.RECEIVED
    assert parts(empty_database, held.id)[model.name].state is ErasureState.RECEIVED


def put_back(session: Session, id: str, model: Model, person: str, state: ErasureState) -> None:
    """Make an erasure as open as it was when the backup was made."""
    erasure = session.get_one(Erasure, id)
    erasure.state, erasure.subject = state, subject_hash(person, SECRET)
    erasure.receipt = erasure.completed_at = None
    session.get_one(Part, (id, model.id)).state = state


def test_nothing_takes_the_place_of_a_missing_receipt(empty_database: Database, store: Store) -> None:
    """After the restore, nothing is recorded until the missing leaves are back."""
    model, person = new_model(empty_database), somebody()
    with forgotten(empty_database, store):
        ask(empty_database, person)
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
        assert tree.size_of(session) == 0
