"""Which versions depend on an erased person's examples: the same result in Python and in SQL."""

from __future__ import annotations

import pytest
from sqlalchemy import literal, select

from core.database import Database
from core.tables.erasures import Part
from core.tables.versions import Version
from core.versions.erased_examples import (
    has_examples_at,
    has_forgotten,
    made_after_request,
    may_depend_on,
    position_has_erased_examples,
    precedes_examples,
)
from tests.core.erasure.erasure_helpers import ask, give, parts, somebody
from tests.core.ledger.reference_ledger import Row, add, new_model

FIRST, REMOVED = 3, 6


@pytest.mark.parametrize("position", range(9))
def test_a_position_has_the_persons_examples_from_the_first_example_until_all_are_removed(
    database: Database, position: int
) -> None:
    part = Part(first_position=FIRST, removal_position=REMOVED)
    assert has_examples_at(part, position) == (FIRST <= position < REMOVED)
    assert precedes_examples(part, position) == (position < FIRST)
    assert has_forgotten(part, Version(position=2, removals_position=position)) == (position >= REMOVED)
    with database.read() as session:
        in_sql = session.scalar(select(has_examples_at(part, literal(position))))
    assert bool(in_sql) == (FIRST <= position < REMOVED)


def test_an_earlier_position_includes_examples_that_are_erased_later(database: Database) -> None:
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", split=False), Row("b", split=False)])
    give(database, model, person, "c", "d")
    part = parts(database, ask(database, person).id)[model.name]
    assert (part.first_position, part.removal_position) == (3, 6)
    with database.read() as session:
        found = [position_has_erased_examples(session, model.id, position) for position in range(8)]
        rebuilt = [position_has_erased_examples(session, model.id, 4, removals) for removals in range(4, 8)]
    assert found == [has_examples_at(part, position) for position in range(8)]
    assert rebuilt == [True, True, False, False], "a version is rebuilt without examples removed since"


@pytest.mark.parametrize("shown", [None, 4])
def test_a_version_older_than_the_verified_one_may_depend_on_the_person(shown: int | None) -> None:
    part = Part(first_position=FIRST, removal_position=REMOVED, version=shown)
    text = str(may_depend_on(part, Version).compile(compile_kwargs={"literal_binds": True}))
    assert ("versions.number < 4" in text) is (shown is not None)
    assert "versions.position >= 3" in text
    assert "versions.removals_position < 6" in text


def test_only_a_version_made_after_the_request_counts_as_verified() -> None:
    part = Part(first_position=FIRST, removal_position=REMOVED, newest_version=2)
    assert [made_after_request(part, Version(number=number)) for number in (1, 2, 3)] == [False, False, True]
    assert not made_after_request(part, None)
    assert has_forgotten(part, None)
