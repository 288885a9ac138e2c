"""The files of the journal: contents of an erased person's examples are gone from all of them before the receipt."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from core.database import Database
from core.erasure.purge import delete_examples
from core.errors import Unavailable
from core.register import journal_files
from core.tables.journal import JournalEntry, JournalFile
from core.tables.models import Model
from core.versions.store import Store
from tests.core.erasure.erasure_helpers import ask, give, parts, somebody, store_of
from tests.core.ledger.reference_ledger import Row, correct, new_model

FILES = 3


@pytest.fixture
def store(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(journal_files, "MAX_SMALL_FILES", FILES - 1)
    return store_of(empty_database)


def contents(store: Store) -> list[bytes]:
    return [store.get(name) for name in store.names(journal_files.FOLDER)]


def corrected(database: Database, store: Store) -> tuple[Model, str]:
    """A model with corrections in several files, and the first of the people whose examples were corrected."""
    model, people = new_model(database), [somebody() for _ in range(FILES)]
    for number, person in enumerate(people):
        give(database, model, person, f"{number}")
        correct(database, model, [Row(f"{number}", x=(7.0, 7.0), subject=person)])
        journal_files.write(database, store)
    assert len(contents(store)) == FILES
    return model, people[0]


def purge(database: Database, model: Model, person: str) -> int:
    """Request an erasure and delete the person's examples, as the job does; returns the last of their positions."""
    id = ask(database, person).id
    part = parts(database, id)[model.name]
    with database.write() as session:
        delete_examples(session, session.get_one(Model, model.id), part.positions)
    return part.removal_position


def may_have_contents(database: Database, model: Model, until: int) -> bool:
    with database.read() as session:
        return journal_files.may_have_contents(session, model.id, until)


def test_contents_are_gone_when_the_files_are_written(empty_database: Database, store: Store) -> None:
    model, person = corrected(empty_database, store)
    until = purge(empty_database, model, person)
    assert may_have_contents(empty_database, model, until)
    journal_files.write(empty_database, store)
    assert not may_have_contents(empty_database, model, until)
    assert sum(data.count(b'\\"rows\\": [null]') for data in contents(store)) == 1


def test_a_merged_file_may_have_contents_until_it_is_deleted(
    empty_database: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged file is written, but the store fails before the old ones are deleted."""
    model, person = corrected(empty_database, store)
    old = set(store.names(journal_files.FOLDER))
    journal_files.merge_small(empty_database)
    until = purge(empty_database, model, person)
    with monkeypatch.context() as failing:
        failing.setattr(store, "delete", lambda name: fail())
        with pytest.raises(Unavailable):
            journal_files.write(empty_database, store)
    with empty_database.read() as session:
        assert session.scalar(select(JournalEntry.id).where(JournalEntry.written.is_(False))) is None
    assert old < set(store.names(journal_files.FOLDER))
    assert may_have_contents(empty_database, model, until)
    journal_files.write(empty_database, store)
    assert not may_have_contents(empty_database, model, until)
    assert old.isdisjoint(store.names(journal_files.FOLDER))


def fail() -> None:
    raise Unavailable("store_unavailable", "The store is down.")


def test_new_entries_do_not_delay_the_deletion_of_merged_files(empty_database: Database, store: Store) -> None:
    """A change that arrives while the files are written is no reason to keep the old ones."""
    model, person = corrected(empty_database, store)
    old = set(store.names(journal_files.FOLDER))
    journal_files.merge_small(empty_database)
    written = store.write

    def write(name: str, data: bytes) -> None:
        store.write = written  # type: ignore[method-assign]
        written(name, data)
        other = new_model(empty_database)
        give(empty_database, other, somebody(), "new")
        correct(empty_database, other, [Row("new", x=(8.0, 8.0))])

    if not empty_database.sqlite:  # on SQLite, nobody writes at the same time
        store.write = write  # type: ignore[method-assign]
    until = purge(empty_database, model, person)
    journal_files.write(empty_database, store)
    assert old.isdisjoint(store.names(journal_files.FOLDER))
    assert not may_have_contents(empty_database, model, until)


def test_a_file_is_kept_while_another_transaction_changes_the_entries_that_moved(
    empty_database: Database, store: Store
) -> None:
    if empty_database.sqlite:
        pytest.skip("On SQLite, nobody else writes while the entries are changed.")
    corrected(empty_database, store)
    old = set(store.names(journal_files.FOLDER))
    journal_files.merge_small(empty_database)
    with empty_database.write() as session:
        session.execute(update(JournalEntry).values(written=False))
        journal_files.write(empty_database, store)
        assert old <= set(store.names(journal_files.FOLDER))
    journal_files.write(empty_database, store)
    assert old.isdisjoint(store.names(journal_files.FOLDER))
    with empty_database.read() as session:
        assert len(session.scalars(select(JournalFile.name)).all()) == 1
