"""The state machine: where an erasure can go from each state, and what is said to who asks for something else."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import decisions, states
from core.errors import Conflict
from core.tables.erasures import OPEN, Erasure, ErasureState, Part
from core.tables.models import Model
from tests.core.erasure.erasure_helpers import ask, change, find_erasure, give, parts, reach, somebody
from tests.core.ledger.reference_ledger import new_model

HELD, RECEIVED, PURGING = ErasureState.HELD, ErasureState.RECEIVED, ErasureState.PURGING
COMPLETED, FAILED, REFUSED = ErasureState.COMPLETED, ErasureState.FAILED, ErasureState.REFUSED
ROOT = Path(__file__).parents[3]

Act = Callable[[Session, Erasure], None]
DECISIONS: dict[str, Act] = {
    "approve": lambda session, erasure: decisions.approve(session, erasure, "key"),
    "refuse": lambda session, erasure: decisions.refuse(session, erasure, "no", "key"),
    "extend": lambda session, erasure: decisions.extend(session, erasure, "later", "key"),
    "retry": lambda session, erasure: decisions.retry(session, erasure, "key"),
}
FORBIDDEN = {
    ("approve", RECEIVED): "erasure_not_held",
    ("approve", PURGING): "erasure_not_held",
    ("approve", FAILED): "erasure_not_held",
    ("approve", COMPLETED): "erasure_not_held",
    ("approve", REFUSED): "erasure_not_held",
    ("refuse", PURGING): "erasure_begun",
    ("refuse", COMPLETED): "erasure_ended",
    ("refuse", REFUSED): "erasure_ended",
    ("extend", COMPLETED): "erasure_ended",
    ("extend", REFUSED): "erasure_ended",
    ("retry", HELD): "erasure_not_failed",
    ("retry", RECEIVED): "erasure_not_failed",
    ("retry", PURGING): "erasure_not_failed",
    ("retry", COMPLETED): "erasure_not_failed",
    ("retry", REFUSED): "erasure_not_failed",
}


def erasure_in(database: Database, state: ErasureState) -> str:
    """The id of an erasure that has come to a state."""
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person, hold=state is HELD).id
    if state is REFUSED:
        change(database, id, DECISIONS["refuse"])
    elif state not in (HELD, RECEIVED):
        reach(database, id, model, state)
    assert find_erasure(database, id).state is state
    return id


@pytest.mark.parametrize(("decision", "state"), [(d, s) for d, s in product(DECISIONS, ErasureState)])
def test_a_decision_is_made_or_refused_by_the_state(database: Database, decision: str, state: ErasureState) -> None:
    if state in (ErasureState.ADAPTING, ErasureState.VERIFYING):
        return
    id = erasure_in(database, state)
    code = FORBIDDEN.get((decision, state))
    if code is None:
        change(database, id, DECISIONS[decision])
        return
    with pytest.raises(Conflict) as refused:
        change(database, id, DECISIONS[decision])
    assert refused.value.code == code
    assert find_erasure(database, id).state is state


@pytest.mark.parametrize("state", ErasureState)
@pytest.mark.parametrize("row", [Erasure, Part])
def test_nothing_moves_but_as_the_table_says(row: type[Erasure | Part], state: ErasureState) -> None:
    for wanted in ErasureState:
        found = row(state=state)
        if wanted in states.TRANSITIONS[state]:
            states.move(found, wanted)
            assert found.state is wanted
        else:
            with pytest.raises(ValueError, match="cannot become"):
                states.move(found, wanted)
            assert found.state is state


def test_what_has_ended_stays_ended() -> None:
    assert not states.TRANSITIONS[REFUSED]
    assert not any(state in states.TRANSITIONS[COMPLETED] for state in (HELD, FAILED, REFUSED))
    assert REFUSED not in states.TRANSITIONS[PURGING]
    assert all(HELD not in states.TRANSITIONS[state] for state in OPEN)


def test_a_job_takes_the_parts_of_its_model_from_step_to_step(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a")
    give(database, two, person, "b")
    id = ask(database, person).id
    for step in (ErasureState.ADAPTING, ErasureState.VERIFYING, PURGING, ErasureState.ADAPTING):
        with database.write() as session:
            states.advance(session, one.id, step)
        assert {name: part.state for name, part in parts(database, id).items()} == {one.name: step, two.name: RECEIVED}


def test_a_held_part_waits_for_no_job(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person, hold=True).id
    with database.write() as session:
        states.advance(session, model.id, ErasureState.ADAPTING)
        states.fail(session, session.get_one(Model, model.id).id, {"code": "c", "detail": "d"})
    assert (find_erasure(database, id).state, parts(database, id)[model.name].state) == (HELD, HELD)


def names_assigned_to(tree: ast.AST) -> set[str]:
    """The names whose attribute `state` is assigned to."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else []
        for target in [t for given in targets for t in ast.walk(given)]:
            if isinstance(target, ast.Attribute) and target.attr == "state" and isinstance(target.value, ast.Name):
                found.add(target.value.id)
    return found


def test_nobody_else_changes_a_state() -> None:
    for folder in ("core", "service", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != ROOT / "core/erasure/states.py":
                assert not names_assigned_to(ast.parse(path.read_text())) & {"erasure", "part"}, path
