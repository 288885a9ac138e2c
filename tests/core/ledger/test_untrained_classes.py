"""The classes without training examples at a position, in terms of the classes there."""

from __future__ import annotations

from dataclasses import replace

from core import ledger
from core.database import Database
from core.kprior.model.spec import Target, values_of
from core.ledger.spec_history import spec_at
from core.ledger.untrained_classes import untrained_classes
from core.tables.ledger import ChangeKind
from core.tables.models import Model
from tests.core.ledger.reference_ledger import DRAW, Row, add, batch, locked, new_model, remove


def found(database: Database, model: Model, at: int) -> list[int | str]:
    with database.read() as session:
        spec = spec_at(session, model.id, model.spec, at)
        return [values_of(spec["target"])[code] for code in untrained_classes(session, model.id, spec, at)]


def test_classes_are_untrained_until_a_training_example_has_them(database: Database) -> None:
    model = new_model(database, target={"kind": "classes", "values": ["b", "d"]})
    add(database, model, [Row("1", y=0, split=False), Row("2", y=1, split=False), Row("3", y=1, split=False)])
    wider: Target = {"kind": "classes", "values": ["a", "b", "c", "d"]}  # the codes of the old classes change
    locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.TARGET, wider))
    later = batch([Row("5", y=0, split=True), Row("6", y=2, split=False)])
    ledger.add(database, model.id, DRAW, replace(later, layout_position=4))
    remove(database, model, ["1"])
    assert [found(database, model, at) for at in range(1, 8)] == [
        ["d"],
        [],
        [],
        ["a", "c"],
        ["a", "c"],  # an example of the holdout teaches nothing
        ["a"],
        ["a", "b"],
    ]
    merged: Target = {"kind": "classes", "values": ["a", "c"], "merge": {"b": "a", "d": "a"}}
    locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.TARGET, merged))
    assert found(database, model, 8) == []


def test_other_targets_have_no_untrained_classes(database: Database) -> None:
    model = new_model(database)
    add(database, model, [Row("1", y=1, split=False)])
    with database.read() as session:
        assert untrained_classes(session, model.id, model.spec, 1) == []
