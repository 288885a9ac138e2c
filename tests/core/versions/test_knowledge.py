"""Who knows an erased person: the same answer in Python and in SQL."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from core.database import Database
from core.tables.erasures import Part
from core.tables.ledger import Example
from core.tables.versions import Version
from core.versions.knowledge import has_forgotten, is_proven, knows, may_know, never_knew, position_knows_erased
from tests.core.erasure.erasure_helpers import ask, give, parts, somebody
from tests.core.ledger.reference_ledger import Row, add, new_model

FIRST, REMOVED = 3, 6


@pytest.mark.parametrize("position", range(9))
def test_a_position_knows_the_person_from_the_first_example_until_all_are_removed(
    database: Database, position: int
) -> None:
    part = Part(first=FIRST, removed=REMOVED)
    assert knows(part, position) == (FIRST <= position < REMOVED)
    assert never_knew(part, position) == (position < FIRST)
    assert has_forgotten(part, Version(position=position)) == (position >= REMOVED)
    with database.read() as session:
        known = select(knows(part, Example.position)).where(Example.position == position)
        assert session.scalar(known.limit(1)) in (None, knows(part, position))


def test_a_position_of_the_ledger_knows_who_is_erased_after_it(database: Database) -> None:
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", split=False), Row("b", split=False)])
    give(database, model, person, "c", "d")
    part = parts(database, ask(database, person).id)[model.name]
    assert (part.first, part.removed) == (3, 6)
    with database.read() as session:
        found = [position_knows_erased(session, model.id, position) for position in range(8)]
    assert found == [knows(part, position) for position in range(8)]


@pytest.mark.parametrize("shown", [None, 4])
def test_a_version_made_before_one_was_shown_to_have_forgotten_may_know_the_person(shown: int | None) -> None:
    part = Part(first=FIRST, removed=REMOVED, version=shown)
    text = str(may_know(part, Version).compile(compile_kwargs={"literal_binds": True}))
    assert ("versions.number < 4" in text) is (shown is not None)
    assert "versions.position >= 3" in text
    assert "versions.position < 6" in text


def test_only_a_version_from_after_the_request_proves_anything() -> None:
    part = Part(first=FIRST, removed=REMOVED, newest=2)
    assert [is_proven(part, Version(number=number)) for number in (1, 2, 3)] == [False, False, True]
    assert not is_proven(part, None)
    assert has_forgotten(part, None)
