"""Nothing that is kept is forgotten by whoever has to delete it."""

from __future__ import annotations

from core import tables
from core.erasure import purging, receipts
from core.versions.history import folder_of


def test_every_table_says_what_becomes_of_a_person_in_it() -> None:
    assert set(purging.PURGED) == set(tables.Base.metadata.tables)
    assert all(purging.PURGED.values())


def test_every_column_that_can_hold_bytes_of_a_person_is_known() -> None:
    """A new column that holds free text or bytes must be thought of when people are erased."""
    held = {
        f"{table.name}.{column.name}"
        for table in tables.Base.metadata.tables.values()
        for column in table.columns
        if column.type.python_type is bytes
        or (column.type.python_type is str and not getattr(column.type, "length", 0))
    }
    assert held == {
        "examples.id",
        "examples.subject",
        "examples.x",
        "erasures.subject",
        "answers.digest",
        "answers.request",
        "answers.body",
        "keys.digest",
        "marks.value",
    }


def test_the_folders_of_the_store_are_those_that_are_looked_at() -> None:
    assert folder_of(7).split("/") == ["models", "7"]
    assert receipts.FOLDER == "receipts"
