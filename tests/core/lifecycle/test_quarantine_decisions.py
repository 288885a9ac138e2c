"""Accepting a rejected version: it is promoted only if everything that it was trained on is in force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import Conflict
from core.ledger.quarantine import quarantine
from core.ledger.removal_selections import remove_named
from core.lifecycle.quarantine_decisions import Decision, accept, discard
from core.lifecycle.removed_examples import purge_removed
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from tests.core.erasure.erasure_helpers import ask, somebody
from tests.core.jobs.rows import enter_version
from tests.core.ledger.reference_ledger import Row, add, locked, new_model, stored

Change = Callable[[Database, Model, str], object]


def reject(database: Database, model: Model) -> int:
    """Let a version learn the examples after the tip, and reject it; returns its number."""

    def record(session: Session, row: Model) -> int:
        tip = session.get_one(Version, (row.id, row.tip))
        copied = {name: getattr(tip, name) for name in ("method", "memory", "metrics", "cost", "sha256", "file")}
        number, state = tip.number + 1, VersionState.REJECTED
        values = {"parent": tip.number, "position": row.head, "dataset_digest": "0" * 64, **copied}
        session.add(Version(model_id=row.id, number=number, kind=VersionKind.ADAPTED, state=state, **values))
        quarantine(session, row, tip.position, row.head, number)
        return number

    number: int = locked(database, model, record)
    return number


def poisoned(database: Database, person: str) -> tuple[Model, int]:
    """A model with a champion, whose second version was rejected."""
    model = new_model(database)
    add(database, model, [Row(f"old-{i}", split=False) for i in range(4)])
    enter_version(database, model)
    add(database, model, [Row("bad-0", split=False, subject=person), Row("bad-1", split=False)])
    return model, reject(database, model)


def purge(database: Database, model: Model) -> None:
    locked(database, model, purge_removed)


def decide(database: Database, model: Model, number: int) -> Decision:
    def act(session: Session, row: Model) -> Decision:
        return accept(session, row, session.get_one(Version, (row.id, number)), "key", None)

    decision: Decision = locked(database, model, act)
    return decision


def test_a_version_whose_examples_all_return_is_promoted(database: Database) -> None:
    model, number = poisoned(database, somebody())
    assert decide(database, model, number).examples == 2
    assert stored(database, model).champion == number


def remove_new(database: Database, model: Model, _person: str) -> None:
    names = ["bad-1"]
    locked(database, model, lambda session, row: remove_named(session, row, Example.id, names, names))


def remove_and_purge_new(database: Database, model: Model, person: str) -> None:
    remove_new(database, model, person)
    purge(database, model)


def remove_old(database: Database, model: Model, _person: str) -> None:
    names = ["old-1"]
    locked(database, model, lambda session, row: remove_named(session, row, Example.id, names, names))


def hold(database: Database, _model: Model, person: str) -> None:
    ask(database, person, hold=True)


@pytest.mark.parametrize("change", [remove_new, remove_and_purge_new, remove_old, hold])
def test_a_version_that_was_trained_on_removed_examples_is_not_promoted(database: Database, change: Change) -> None:
    person = somebody()
    model, number = poisoned(database, person)
    change(database, model, person)
    decision = decide(database, model, number)
    assert (decision.examples, stored(database, model).champion) == (2 if change is remove_old else 1, 1)
    assert decision.job is not None  # adapts the model to the accepted examples
    with database.read() as session:
        assert session.get_one(Version, (model.id, number)).state is VersionState.SUPERSEDED


def test_a_version_whose_examples_were_discarded_and_deleted_cannot_be_accepted(database: Database) -> None:
    model, number = poisoned(database, somebody())
    locked(database, model, lambda session, row: discard(session, row, session.get_one(Version, (row.id, number))))
    purge(database, model)
    with pytest.raises(Conflict, match="were discarded"):
        decide(database, model, number)
    assert stored(database, model).champion == 1
