"""Adding and removing examples: what is stored, counted and rejected."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from core import ledger
from core.database import Database
from core.errors import Conflict
from core.ledger import Added, additions, passes, positions, queries
from core.models.policy import HoldoutPolicy, Policy
from core.tables.ledger import ChangeKind, Example
from core.tables.models import Model
from tests.core.ledger.reference_ledger import (
    DRAW,
    HOLDOUT,
    Row,
    add,
    batch,
    contents,
    correct,
    gap_free,
    locked,
    new_model,
    remove,
    remove_subjects,
    runs,
    stored,
)

ABC = [Row("a", split=False), Row("b", split=False), Row("c", split=True)]


@pytest.fixture
def model(database: Database) -> Model:
    return new_model(database)


def test_every_change_has_a_position_of_its_own_without_gaps(database: Database, model: Model) -> None:
    assert add(database, model, ABC) == Added(3, 0, 1, 3)
    assert remove(database, model, ["a", "c"]).position == 5
    regularizer = {"kind": "l2", "delta": 2.0, "penalize_bias": False}
    assert locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.REGULARIZER, regularizer)) == 6
    assert add(database, model, [Row("d")]) == Added(1, 0, 7, 7)
    assert runs(database, model) == [(1, 3, "added"), (4, 5, "removed"), (6, 6, "regularizer"), (7, 7, "added")]
    assert gap_free(runs(database, model), stored(database, model).head)


def test_counts_match_the_examples_in_force(database: Database, model: Model) -> None:
    add(database, model, ABC)
    remove(database, model, ["b", "c"])
    now = stored(database, model)
    assert (now.train_count, now.holdout_count, now.removed_count) == (1, 0, 2)


def test_the_same_example_again_is_a_duplicate(database: Database, model: Model) -> None:
    add(database, model, ABC)
    assert add(database, model, ABC) == Added(0, 3, None, None)
    assert add(database, model, [*ABC, Row("d"), Row("d")]) == Added(1, 4, 4, 4)
    assert stored(database, model).head == 4


@pytest.mark.parametrize(
    "other",
    [Row("a", x=(1.0, 3.0), split=False), Row("a", y=1.0, split=False), Row("a", subject="s"), Row("a", split=True)],
    ids=["input", "target", "subject", "split"],
)
def test_an_id_with_different_content_rejects_the_whole_batch(database: Database, model: Model, other: Row) -> None:
    add(database, model, ABC)
    with pytest.raises(Conflict) as refused:
        add(database, model, [Row("new"), other])
    assert refused.value.code == "example_conflict"
    assert refused.value.errors[0]["loc"] == ["examples", 1]
    assert stored(database, model).head == 3
    assert len(contents(passes.read_in_force(database, model.id, model.spec, 3))) == 2


def test_a_batch_split_with_an_outdated_holdout_fraction_is_not_stored(database: Database, model: Model) -> None:
    with database.write() as session:
        assert additions.add_new(session, model.id, HoldoutPolicy(fraction=HOLDOUT / 2), batch(ABC)) is None
    assert stored(database, model).head == 0
    with database.write() as session:
        assert additions.add_new(session, model.id, DRAW, batch(ABC)) == Added(3, 0, 1, 3)


def test_one_id_with_two_contents_in_a_batch_is_rejected(database: Database, model: Model) -> None:
    with pytest.raises(Conflict):
        add(database, model, [Row("a"), Row("a", y=1.0)])
    assert stored(database, model).head == 0


def test_an_id_can_be_used_for_another_example_after_its_removal(database: Database, model: Model) -> None:
    add(database, model, ABC)
    remove(database, model, ["a"])
    assert add(database, model, [Row("a", x=(7.0, 7.0), split=False)]) == Added(1, 0, 5, 5)
    assert contents(passes.read_in_force(database, model.id, model.spec, 3)).keys() == {1, 2}
    assert contents(passes.read_in_force(database, model.id, model.spec, 5)).keys() == {2, 5}


def test_removing_a_subject_removes_all_its_examples(database: Database, model: Model) -> None:
    add(database, model, [Row("a", subject="s"), Row("b", subject="t"), Row("c", subject="s"), Row("d")])
    removed = remove_subjects(database, model, ["s", "nobody", "s"])
    assert (removed.count, removed.unknown, removed.position) == (2, ["nobody"], 6)


def test_unknown_and_repeated_names_in_a_removal_are_harmless(database: Database, model: Model) -> None:
    add(database, model, ABC)
    removed = remove(database, model, ["zz", "a", "a", "zz"])
    assert (removed.count, removed.unknown, removed.position) == (1, ["zz"], 4)
    again = remove(database, model, ["a"])
    assert (again.count, again.unknown, again.position) == (0, ["a"], 4)


def test_models_do_not_see_each_others_examples(database: Database, model: Model) -> None:
    other = new_model(database)
    add(database, model, ABC)
    add(database, other, [Row("a", y=1.0)])
    assert remove(database, other, ["b"]).count == 0
    assert stored(database, model).train_count == 2


def test_a_missing_split_is_drawn_by_the_id_with_the_policys_holdout_fraction(database: Database, model: Model) -> None:
    add(database, model, [Row(f"e{i}") for i in range(2000)])
    other = new_model(database)
    add(database, other, [Row(f"e{i}") for i in reversed(range(2000))])
    held = [stored(database, m).holdout_count for m in (model, other)]
    assert held[0] == held[1] == pytest.approx(2000 * HOLDOUT, abs=100)


def test_all_examples_of_a_subject_are_drawn_together(database: Database, model: Model) -> None:
    rows = [Row(f"e{i}", subject=None if i % 4 == 0 else f"s{i % 300}") for i in range(2000)]
    for start in range(0, 2000, 500):
        add(database, model, rows[start : start + 500])
    with database.read() as session:
        found = session.execute(select(Example.subject, Example.holdout).where(Example.model_id == model.id)).all()
    assert sum(held for _, held in found) == sum(row.holdout for row in rows) == stored(database, model).holdout_count
    held, trained = ({subject for subject, split in found if split == one} - {None} for one in (True, False))
    assert not held & trained
    assert len(held) == pytest.approx(225 * HOLDOUT, abs=25)


@pytest.mark.parametrize(
    "holdout", [HOLDOUT, {"fraction": HOLDOUT}, {"fraction": HOLDOUT, "by": "example"}, 0, 1e-5], ids=str
)
def test_the_draw_follows_either_form_of_the_policy(database: Database, model: Model, holdout: Any) -> None:
    policy = Policy(holdout=holdout)
    with database.write() as session:
        session.get_one(Model, model.id).policy = policy.plain()
    with database.write() as session:
        assert positions.lock(session, model.id) == (policy.holdout_draw, 0)
    rows = [Row(f"e{i}", subject="one person") for i in range(200)]
    given = batch(rows)
    for other in (HoldoutPolicy(fraction=0.9), HoldoutPolicy(fraction=policy.holdout_draw.fraction, by="example")):
        if other != policy.holdout_draw:  # a batch that was split by an outdated policy is not stored
            with database.write() as session:
                assert additions.add_new(session, model.id, other, given) is None
            assert additions.add_alone(database, model.id, other, given) is None
    assert additions.add_alone(database, model.id, policy.holdout_draw, given) == Added(200, 0, 1, 200)
    by_id = sum(Row(row.id).holdout for row in rows)
    fraction, together = policy.holdout_draw.fraction, 200 * rows[0].holdout
    expected = 0 if fraction < HOLDOUT else by_id if policy.holdout_draw.by == "example" else together
    assert stored(database, model).holdout_count == expected


def test_a_correction_that_names_another_subject_moves_the_example_to_the_split_of_that_subject(
    database: Database, model: Model
) -> None:
    people = [f"s{i}" for i in range(20)]
    held = next(s for s in people if Row("x", subject=s).holdout)
    trained = next(s for s in people if not Row("x", subject=s).holdout)
    add(database, model, [Row("a", subject=trained), Row("b", subject=trained)])
    correct(database, model, [Row("a", y=1.0, subject=held), Row("b", y=1.0)])
    assert (stored(database, model).holdout_count, stored(database, model).train_count) == (1, 1)


def test_batches_with_more_ids_than_one_query_takes(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "VALUES_PER_QUERY", 7)
    rows = [Row(f"e{i}", split=False) for i in range(50)]
    add(database, model, rows[:30])
    assert add(database, model, rows) == Added(20, 30, 31, 50)
    removed = remove(database, model, [row.id for row in reversed(rows)])
    assert (removed.count, removed.position) == (50, 100)
    assert gap_free(runs(database, model), 100)
    for at in (50, 51, 57, 58, 99, 100):  # each removal has a position of its own
        assert len(contents(passes.read_in_force(database, model.id, model.spec, at))) == 100 - at
