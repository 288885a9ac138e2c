"""Quarantine: examples of a rejected version leave force, keep their content, and come back or go by decision."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import select

from core import ledger
from core.database import Database
from core.errors import Conflict
from core.ledger import passes
from core.ledger.batch import to_times
from core.ledger.quarantine import accept, discard, quarantine, quarantined_versions
from core.ledger.spec_history import spec_at
from core.ledger.subject_hashes import subject_hash
from core.tables.ledger import Change, ChangeKind, Example
from core.tables.models import Model
from tests.core.ledger.reference_ledger import DRAW, SECRET, Row, add, batch, locked, new_model

ROWS = [Row(f"old-{i}", split=i == 0) for i in range(4)]
BATCH = [Row(f"new-{i}", y=1.0, split=i == 0, subject=f"person {i}") for i in range(5)]


@pytest.fixture
def model(database: Database) -> Model:
    """Four good examples, five whose version was rejected."""
    model = new_model(database)
    add(database, model, ROWS)
    add(database, model, BATCH)
    assert locked(database, model, lambda session, model: quarantine(session, model, 4, 9, version=7)) == 5
    return model


def counts(database: Database, model: Model) -> tuple[int, int, int, int, int]:
    """Head, training, holdout, removed, quarantined."""
    with database.read() as session:
        row = session.get_one(Model, model.id)
        return row.head, row.train_count, row.holdout_count, row.removed_count, row.quarantined_count


def in_force(database: Database, model: Model, holdout: bool = False) -> list[int]:
    with database.read() as session:
        head = session.get_one(Model, model.id).head
        spec = spec_at(session, model.id, model.spec, head)
    chunks = passes.read_in_force(database, model.id, spec, head, holdout)
    return [int(key) for chunk in chunks for key in chunk.key]


def test_quarantined_examples_leave_training_and_holdout(database: Database, model: Model) -> None:
    assert counts(database, model) == (14, 3, 1, 0, 5)
    assert in_force(database, model) == [2, 3, 4]
    assert in_force(database, model, holdout=True) == [1]
    with database.read() as session:
        last = session.scalars(select(Change).where(Change.model_id == model.id).order_by(Change.last)).all()[-1]
        assert (last.kind, last.first, last.last) == (ChangeKind.QUARANTINED, 10, 14)
        assert quarantined_versions(session, session.get_one(Model, model.id)) == {7: 5}


def test_sending_a_quarantined_batch_again_does_not_put_it_into_force(database: Database, model: Model) -> None:
    again = add(database, model, BATCH)
    assert (again.accepted, again.duplicates) == (0, 5)
    with pytest.raises(Conflict):
        add(database, model, [Row("new-1", y=0.0, subject="person 1", split=False)])
    assert counts(database, model) == (14, 3, 1, 0, 5)


def test_accepting_puts_the_examples_back_at_new_positions(database: Database, model: Model) -> None:
    assert locked(database, model, lambda session, model: accept(session, model, 7)) == 5
    assert counts(database, model) == (19, 7, 2, 0, 0)
    assert in_force(database, model) == [2, 3, 4, 16, 17, 18, 19]
    assert in_force(database, model, holdout=True) == [1, 15]
    with database.read() as session:
        found = select(Example).where(Example.model_id == model.id, Example.position == 16)
        back = session.scalars(found).one()
        assert (back.id, back.y, back.subject) == ("new-1", 1.0, subject_hash("person 1", SECRET))


def test_accepting_leaves_people_out_whose_erasure_was_requested(database: Database, model: Model) -> None:
    asked = [subject_hash("person 2", SECRET)]
    assert locked(database, model, lambda session, model: accept(session, model, 7, asked)) == 4
    assert counts(database, model) == (18, 6, 2, 0, 1)


def test_discarding_makes_them_ordinary_removed_examples(database: Database, model: Model) -> None:
    assert locked(database, model, lambda session, model: discard(session, model, 7)) == 5
    assert counts(database, model) == (14, 3, 1, 5, 0)
    assert add(database, model, BATCH).accepted == 5  # the ids are free again


def test_another_versions_quarantine_is_left_alone(database: Database, model: Model) -> None:
    assert locked(database, model, lambda session, model: discard(session, model, 8)) == 0
    assert locked(database, model, lambda session, model: accept(session, model, 8)) == 0
    assert counts(database, model) == (14, 3, 1, 0, 5)


def test_examples_removed_before_the_quarantine_stay_removed(database: Database) -> None:
    model = new_model(database)
    add(database, model, BATCH)
    locked(
        database,
        model,
        lambda session, model: ledger.remove(session, model, Example.id, ["new-1"], ["new-1"]),
    )
    assert locked(database, model, lambda session, model: quarantine(session, model, 0, 5, version=2)) == 4
    assert counts(database, model) == (10, 0, 0, 1, 4)


def test_event_times_and_sources_are_stored_and_survive_a_quarantine(database: Database) -> None:
    model = new_model(database)
    noon = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
    times = [noon, None, noon - timedelta(days=40_000), noon]
    rows = [Row(f"t{i}", split=False) for i in range(4)]
    sent = batch(rows)
    sent = type(sent)(
        sent.ids, sent.subjects, sent.x, sent.y, sent.splits, weights=np.array([2.0, 1, 1, 3]), times=to_times(times),
        sources=["crm", None, "Überweisung", "crm"],
    )  # fmt: skip
    ledger.add(database, model.id, DRAW, sent)

    def stored(first: int) -> list[tuple[datetime | None, str | None, float | None]]:
        with database.read() as session:
            rows = select(Example).where(Example.model_id == model.id, Example.position >= first)
            ordered = session.scalars(rows.order_by(Example.position))
            return [(row.time, row.source, row.weight) for row in ordered]

    expected = list(zip(times, ["crm", None, "Überweisung", "crm"], [2.0, None, None, 3.0], strict=True))
    assert stored(1) == expected
    locked(database, model, lambda session, model: quarantine(session, model, 0, 4, version=1))
    locked(database, model, lambda session, model: accept(session, model, 1))
    assert stored(9) == expected
