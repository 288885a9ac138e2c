"""Deleting removed examples, without a worker."""

from __future__ import annotations

import numpy as np
from sqlalchemy import delete, select, update

from core.clock import now
from core.database import Database
from core.ledger import quarantine
from core.lifecycle.removed_examples import has_removed_examples, may_have_unneeded, purge_removed
from core.quality.erased_records import round_windows
from core.quality.evaluation_windows import Scores
from core.quality.scored_rows import ScoredRows
from core.tables.erasures import Part
from core.tables.jobs import Job
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Version, VersionState
from tests.core.erasure.erasure_helpers import ask, give, parts, somebody
from tests.core.jobs.rows import enter_version
from tests.core.ledger.reference_ledger import Row, add, locked, new_model, remove

MANY = 40_000
"""More than the parameters of one statement on SQLite."""


def test_examples_of_a_held_erasure_stay_however_many_they_are(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a", "b")
    give(database, model, somebody(), "c")
    id = ask(database, person, hold=True).id
    remove(database, model, ["c"])
    with database.write() as session:
        session.execute(delete(Job).where(Job.model_id == model.id))  # while any waits, nothing is deleted
        part = session.get_one(Part, (id, model.id))
        part.restricted = [*part.restricted, *range(1000, 1000 + MANY)]
    with database.write() as session:
        found = session.get_one(Model, model.id)
        assert has_removed_examples(session, found)
        assert purge_removed(session, found) == 1
        assert not has_removed_examples(session, found)
        left = session.scalars(select(Example.id).where(Example.model_id == model.id))
        assert set(left) == {"a", "b"}


def test_an_expired_example_leaves_only_its_position_and_hash(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    full = {"weight": 2.0, "time": now(), "source": "load", "unseen": '{"0": "private"}'}
    with database.write() as session:
        session.execute(update(Example).where(Example.model_id == model.id).values(full))
    enter_version(database, model)
    remove(database, model, ["a"])
    enter_version(database, model)
    with database.write() as session:
        session.execute(delete(Job).where(Job.model_id == model.id))
        assert purge_removed(session, session.get_one(Model, model.id)) == 1
    with database.read() as session:
        row = session.scalars(select(Example).where(Example.model_id == model.id)).one()
        kept = {"model_id", "position", "removed", "holdout", "subject"}
        held = {column.name: getattr(row, column.name) for column in Example.__table__.columns}
        assert {name for name, value in held.items() if value not in (None, b"", "", 0.0)} <= kept


def purge(database: Database, model: Model) -> int:
    """Delete removed examples, as no job waits."""
    with database.write() as session:
        session.execute(delete(Job).where(Job.model_id == model.id))
        return purge_removed(session, session.get_one(Model, model.id))


def left(database: Database, model: Model) -> dict[int, str]:
    """Positions and ids of what the database still has; the id is empty where only the position is left."""
    with database.read() as session:
        rows = session.execute(select(Example.position, Example.id).where(Example.model_id == model.id))
        return {row.position: row.id for row in rows}


def test_the_tick_finds_the_models_whose_removed_examples_can_be_deleted(database: Database) -> None:
    model, other = new_model(database), new_model(database)
    add(database, other, [Row("kept", split=False)])
    add(database, model, [Row("a", split=False), Row("b", split=False)])
    found = [finds(database, model)]  # nothing was removed
    enter_version(database, model)
    remove(database, model, ["a"])
    found.append(finds(database, model))  # version 1 learnt it
    add(database, model, [Row("c", split=False)])
    remove(database, model, ["c"])
    found.append(finds(database, model))  # no version learnt the last one
    purge(database, model)
    found.append(finds(database, model))
    enter_version(database, model)
    found.append(finds(database, model))  # version 2 does not need the first one, either
    purge(database, model)
    found.append(finds(database, model))
    assert found == [False, False, True, False, True, False]
    assert not finds(database, other)


def finds(database: Database, model: Model) -> bool:
    """Whether a model has examples to delete, by the condition for all models and by its own."""
    with database.write() as session:
        session.execute(delete(Job).where(Job.model_id == model.id))
        found = has_removed_examples(session, session.get_one(Model, model.id))
        assert (model.id in session.scalars(select(Model.id).where(may_have_unneeded())).all()) == found
        return found


def test_discarded_examples_are_deleted_without_waiting_for_a_version(database: Database) -> None:
    """The champion never learnt them."""
    model = new_model(database)
    add(database, model, [Row("a", split=False)])
    enter_version(database, model)
    add(database, model, [Row("b", split=False), Row("c", split=True)])
    locked(database, model, lambda session, row: quarantine.quarantine(session, row, 1, 3, version=2))
    assert purge(database, model) == 0
    locked(database, model, lambda session, row: quarantine.discard(session, row, 2))
    assert purge(database, model) == 2
    assert left(database, model) == {1: "a"}


def test_a_removed_example_is_remembered_as_long_as_its_scores_are(database: Database) -> None:
    """Version 1 scored the person's example and never learnt it; an erasure of somebody else purged version 2."""
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", split=False)])
    enter_version(database, model)
    give(database, model, person, "scored")
    add(database, model, [Row(f"b{i}", split=False) for i in range(20)])
    number = enter_version(database, model)
    window = store_window(database, model, 2, 22)
    remove(database, model, ["scored"])
    enter_version(database, model)
    with database.write() as session:
        session.get_one(Version, (model.id, number)).state = VersionState.PURGED
    purge(database, model)
    assert left(database, model)[2] == ""  # no content, but whose it was

    part = parts(database, ask(database, person).id)[model.name]
    assert (part.positions, part.examples) == ([2], 0)
    with database.write() as session:
        round_windows(session, model.id, set(), part.positions)
    with database.read() as session:
        found = session.get_one(QualityWindow, window)
        assert (found.rounded, found.scores, found.rows, found.first_position) == (True, None, 20, 3)
        assert found.metrics["champion"]["loss"] <= 1  # the figures are those of the other examples


def store_window(database: Database, model: Model, first: int, last: int) -> int:
    """Scores of version 1 for the examples at some positions, with a huge loss of the first one; the window's id."""
    position = np.arange(first, last + 1)
    y = (position % 2).astype(float)
    p = np.where(position == first, 1 - 1e-9, 0.3)
    rows = ScoredRows.of("binary", -np.log(np.where(y == 1, p, 1 - p)), p[:, None], y, np.ones(len(y)))
    scores = Scores("binary", position, y, rows.weight, -position, {"champion": rows})
    window = QualityWindow(
        model_id=model.id, start=now(), first_position=first, last_position=last, rows=len(y), weight=len(y),
        heaviest=scores.largest_share(), champion=1, metrics=scores.metrics(), scores=scores.to_bytes(), alarm=False,
    )  # fmt: skip
    with database.write() as session:
        session.add(window)
        session.flush()
        return window.id
