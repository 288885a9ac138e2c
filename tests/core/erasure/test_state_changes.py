"""The state machine: where an erasure can go from each state, and what is said to who asks for something else."""

from __future__ import annotations

import ast
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies
from sqlalchemy import event
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import decisions, state_changes
from core.erasure.deleted_models import note_deletion
from core.erasure.state_machine import ERASURE_TRANSITIONS, JOB_STEPS, TRANSITIONS, derive, move
from core.errors import Conflict
from core.tables.erasures import OPEN, RESTRICTIONS, UNDONE, Erasure, ErasureState, Part
from core.tables.models import Model
from core.versions.erased_examples import open_parts
from tests.core.erasure.erasure_helpers import ask, change, find_erasure, give, parts, reach, somebody
from tests.core.ledger.reference_ledger import new_model

UNMATCHED, HELD = ErasureState.UNMATCHED, ErasureState.HELD
RECEIVED, PURGING = ErasureState.RECEIVED, ErasureState.PURGING
COMPLETED, FAILED, REFUSED = ErasureState.COMPLETED, ErasureState.FAILED, ErasureState.REFUSED
WITHDRAWN = ErasureState.WITHDRAWN
ROOT = Path(__file__).parents[3]

Act = Callable[[Session, Erasure], None]
DECISIONS: dict[str, Act] = {
    "approve": lambda session, erasure: decisions.approve(session, erasure, "key"),
    "refuse": lambda session, erasure: decisions.refuse(session, erasure, "no", "key"),
    "extend": lambda session, erasure: decisions.extend(session, erasure, "later", "key"),
    "retry": lambda session, erasure: decisions.retry(session, erasure, "key"),
    "hold": lambda session, erasure: decisions.hold(session, erasure, "key"),
    "withdraw": lambda session, erasure: decisions.withdraw(session, erasure, "key"),
}
STATES = [state for state in ErasureState if state not in RESTRICTIONS]
ADAPTING, VERIFYING = ErasureState.ADAPTING, ErasureState.VERIFYING
OUTCOMES: dict[tuple[str, ErasureState], ErasureState | str] = {
    ("approve", HELD): RECEIVED,
    ("approve", UNMATCHED): COMPLETED,
    **{("approve", state): "erasure_not_held" for state in ErasureState if state not in (HELD, UNMATCHED)},
    **{("refuse", state): REFUSED for state in (UNMATCHED, HELD, RECEIVED, ADAPTING, VERIFYING, FAILED)},
    **{("withdraw", state): WITHDRAWN for state in (UNMATCHED, HELD, RECEIVED, ADAPTING, VERIFYING, FAILED)},
    **{("hold", state): HELD for state in (RECEIVED, ADAPTING, VERIFYING, FAILED)},
    **{("hold", state): "erasure_not_open" for state in (UNMATCHED, HELD, COMPLETED, REFUSED, WITHDRAWN)},
    **{(decision, PURGING): "erasure_begun" for decision in ("refuse", "withdraw", "hold")},
    **{("extend", state): state for state in (UNMATCHED, HELD, *OPEN)},
    **{
        (decision, state): "erasure_ended"
        for decision in ("refuse", "withdraw", "extend")
        for state in (COMPLETED, REFUSED, WITHDRAWN)
    },
    ("retry", FAILED): RECEIVED,
    **{("retry", state): "erasure_not_failed" for state in ErasureState if state is not FAILED},
}
"""The state after each decision, or the code of the error."""


def erasure_in(database: Database, state: ErasureState) -> str:
    """The id of an erasure that has come to a state."""
    model, person = new_model(database), somebody()
    if state is not UNMATCHED:
        give(database, model, person, "a")
    id = ask(database, person, hold=state is HELD).id
    if state in (REFUSED, WITHDRAWN):
        change(database, id, DECISIONS["refuse" if state is REFUSED else "withdraw"])
    elif state not in (UNMATCHED, HELD, RECEIVED):
        reach(database, id, model, state)
    assert find_erasure(database, id).state is state
    return id


@pytest.mark.parametrize(("decision", "state"), list(product(DECISIONS, STATES)))
def test_the_state_determines_the_outcome_of_a_decision(database: Database, decision: str, state: ErasureState) -> None:
    id, outcome = erasure_in(database, state), OUTCOMES[decision, state]
    if isinstance(outcome, ErasureState):
        change(database, id, DECISIONS[decision])
        assert find_erasure(database, id).state is outcome
        return
    with pytest.raises(Conflict) as refused:
        change(database, id, DECISIONS[decision])
    assert refused.value.code == outcome
    assert find_erasure(database, id).state is state


@pytest.mark.parametrize("state", ErasureState)
@pytest.mark.parametrize(("row", "table"), [(Erasure, ERASURE_TRANSITIONS), (Part, TRANSITIONS)])
def test_a_state_changes_only_as_the_table_permits(
    row: type[Erasure | Part], table: dict[ErasureState, frozenset[ErasureState]], state: ErasureState
) -> None:
    for wanted in ErasureState:
        found = row(state=state)
        if wanted in table[state] or wanted is state:
            move(found, wanted)
            assert found.state is wanted
        else:
            with pytest.raises(ValueError, match="cannot become"):
                move(found, wanted)
            assert found.state is state


def test_the_table_is_the_picture_in_the_documentation() -> None:
    text = (ROOT / "docs/explanation/life-of-a-request.md").read_text()
    [picture] = re.findall(r"stateDiagram-v2\n(.*?)```", text, re.DOTALL)
    drawn = set(re.findall(r"(\w+) --> (\w+)", picture))
    assert drawn == {(state.value, to.value) for state, targets in TRANSITIONS.items() for to in targets}


def test_the_steps_of_a_job_are_transitions() -> None:
    for step, sources in JOB_STEPS.items():
        assert all(step in TRANSITIONS[state] for state in sources)


def test_a_job_takes_the_parts_of_its_model_from_step_to_step(database: Database) -> None:
    one, two, person = new_model(database), new_model(database), somebody()
    give(database, one, person, "a")
    give(database, two, person, "b")
    id = ask(database, person).id
    for step in (ErasureState.ADAPTING, ErasureState.VERIFYING, PURGING, ErasureState.ADAPTING):
        with database.write() as session:
            state_changes.advance(session, one.id, step)
        assert find_erasure(database, id).state is RECEIVED
        assert {name: part.state for name, part in parts(database, id).items()} == {one.name: step, two.name: RECEIVED}


def test_a_held_part_waits_for_no_job(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person, hold=True).id
    with database.write() as session:
        state_changes.advance(session, model.id, ErasureState.ADAPTING)
        state_changes.fail(session, session.get_one(Model, model.id).id, {"code": "c", "detail": "d"})
    assert (find_erasure(database, id).state, parts(database, id)[model.name].state) == (HELD, HELD)


def test_a_part_that_is_received_during_a_job_waits_for_the_next_one(database: Database) -> None:
    model, person, late = new_model(database), somebody(), somebody()
    give(database, model, person, "a")
    give(database, model, late, "b")
    first = ask(database, person).id
    with database.write() as session:
        state_changes.advance(session, model.id, ErasureState.ADAPTING)
    second = ask(database, late).id
    for step in (ErasureState.VERIFYING, PURGING):
        with database.write() as session:
            state_changes.advance(session, model.id, step)
    assert [find_erasure(database, id).state for id in (first, second)] == [PURGING, RECEIVED]


class Machine:
    """Two models, two people, and everything that can happen to their erasures."""

    def __init__(self, database: Database) -> None:
        self.database, self.models, self.people = database, [new_model(database) for _ in range(2)], [somebody()]
        self.people.append(somebody())
        self.ids = [self.ask(i, hold=bool(i)) for i in range(2)]

    def ask(self, i: int, **options: Any) -> str:
        for model in self.models:
            give(self.database, model, self.people[i], f"{uuid.uuid4()}")
        return ask(self.database, self.people[i], **options).id

    def act(self, action: str, i: int) -> None:
        """Do something to the i-th model or erasure; what is forbidden raises Conflict and changes nothing."""
        model, id = self.models[i], self.ids[i]
        with suppress(Conflict):
            if action in DECISIONS:
                change(self.database, id, DECISIONS[action])
            elif action == "ask":
                self.ids[i] = self.ask(i)
            else:
                with self.database.write() as session:
                    self.work(session, action, session.get_one(Model, model.id))

    def work(self, session: Session, action: str, model: Model) -> None:
        """What jobs do."""
        if action == "fail":
            state_changes.fail(session, model.id, {"code": "c", "detail": "d"})
        elif action == "complete":
            for part, erasure in open_parts(session, model.id):
                if part.state is PURGING:
                    state_changes.complete_part(session, part, erasure)
        elif action == "note deletion":
            note_deletion(session, model)
        else:
            state_changes.advance(session, model.id, ErasureState(action))

    def snapshot(self) -> dict[tuple[str, str], ErasureState]:
        """The states of all erasures and their parts."""
        found: dict[tuple[str, str], ErasureState] = {}
        for id in self.ids:
            found[id, ""] = find_erasure(self.database, id).state
            found |= {(id, name): part.state for name, part in parts(self.database, id).items()}
        return found


STEPS = [state.value for state in JOB_STEPS]
ACTIONS = [*(d for d in DECISIONS if d != "extend"), *STEPS, *STEPS, "ask", "fail", "complete", "note deletion"]


SEQUENCE = strategies.tuples(strategies.sampled_from(ACTIONS), strategies.integers(0, 1))


@settings(max_examples=40, deadline=None)
@given(actions=strategies.lists(SEQUENCE, min_size=8))
def test_no_sequence_of_events_leaves_the_table(database: Database, actions: list[tuple[str, int]]) -> None:
    """Assignments are observed one by one; bulk updates make one transition each, seen before and after."""
    seen: list[tuple[type, ErasureState, ErasureState]] = []

    def observe(row: Erasure | Part, new: ErasureState, old: Any, _event: object) -> None:
        if isinstance(old, ErasureState) and old is not new:
            seen.append((type(row), old, new))

    machine = Machine(database)
    for row in (Erasure, Part):
        event.listen(row.state, "set", observe, active_history=True)
    try:
        after = machine.snapshot()
        for action, i in actions:
            before = after
            machine.act(action, i)
            after = machine.snapshot()
            if action in STEPS:
                changed = {key: (old, after[key]) for key, old in before.items() if after[key] is not old}
                seen += [(Part if name else Erasure, *pair) for (_, name), pair in changed.items()]
            for id in machine.ids:
                behind = [state for (of, name), state in after.items() if of == id and name]
                assert after[id, ""] in (HELD, COMPLETED, *UNDONE) or after[id, ""] is derive(behind)
    finally:
        for row in (Erasure, Part):
            event.remove(row.state, "set", observe)
    for kind, old, new in seen:
        assert new in (TRANSITIONS if kind is Part else ERASURE_TRANSITIONS)[old], (kind, old, new)


def names_assigned_to(tree: ast.AST) -> set[str]:
    """The names whose attribute `state` is assigned to."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else []
        for target in [t for assigned in targets for t in ast.walk(assigned)]:
            if isinstance(target, ast.Attribute) and target.attr == "state" and isinstance(target.value, ast.Name):
                found.add(target.value.id)
    return found


def test_nobody_else_changes_a_state() -> None:
    for folder in ("core", "service", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path != ROOT / "core/erasure/state_changes.py" and ".state" in text:
                assert not names_assigned_to(ast.parse(text)) & {"erasure", "part"}, path
