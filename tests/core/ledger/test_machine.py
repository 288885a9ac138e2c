"""Random histories of a ledger, compared step by step with the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from core import ledger
from core.database import Database
from core.errors import Conflict, NotFound
from core.ledger import Added, Replaced, passes
from core.ledger.spec_history import spec_at
from core.tables.ledger import ChangeKind
from tests.core.ledger.reference_ledger import (
    Ledger,
    Row,
    add,
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

# so few values that histories are full of repetitions and conflicts
IDS = st.sampled_from("abcdefg")
SUBJECTS = st.sampled_from("stu")
ROWS = st.builds(
    Row,
    id=IDS,
    x=st.tuples(st.sampled_from([0.0, 1.5]), st.just(2.0)),
    y=st.just(1.0),
    subject=st.none() | SUBJECTS,
    split=st.sampled_from([None, None, None, False, True]),
    weight=st.sampled_from([None, None, None, 1.0, 2.5]),
)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.model = new_model(database)
        self.plain = Ledger()

    @property
    def head(self) -> int:
        return len(self.plain.changes)

    @rule(rows=st.lists(ROWS, min_size=1, max_size=6))
    def add(self, rows: list[Row]) -> None:
        known = {row.id: row for row in self.plain.in_force(self.head).values()}
        fresh: list[Row] = []
        for row in rows:
            before = known.get(row.id)
            if before is None:
                known[row.id] = row
                fresh.append(row)
            elif not settled(before, stored=before not in fresh).agrees(row):
                with pytest.raises(Conflict):
                    add(self.database, self.model, rows)
                return
        first, last = (self.head + 1, self.head + len(fresh)) if fresh else (None, None)
        assert add(self.database, self.model, rows) == Added(len(fresh), len(rows) - len(fresh), first, last)
        self.plain.changes += [("added", row) for row in fresh]

    @rule(ids=st.lists(IDS, min_size=1, max_size=4))
    def remove_ids(self, ids: list[str]) -> None:
        self.check_removal(remove, ids, lambda row: row.id)

    @rule(subjects=st.lists(SUBJECTS, min_size=1, max_size=2))
    def remove_subjects(self, subjects: list[str]) -> None:
        self.check_removal(remove_subjects, subjects, lambda row: row.subject)

    def check_removal(self, act: Callable[..., Any], names: list[str], name_of: Callable[[Row], str | None]) -> None:
        gone = {p: row for p, row in self.plain.in_force(self.head).items() if name_of(row) in names}
        removed = act(self.database, self.model, names)
        found = {name_of(row) for row in gone.values()}
        assert (removed.count, removed.position) == (len(gone), self.head + len(gone))
        assert removed.unknown == [name for name in dict.fromkeys(names) if name not in found]
        self.plain.changes += [("removed", position) for position in gone]

    @rule(rows=st.lists(ROWS, min_size=1, max_size=3))
    def correct(self, rows: list[Row]) -> None:
        known = {row.id: (p, settled(row, stored=True)) for p, row in self.plain.in_force(self.head).items()}
        ids = [row.id for row in rows]
        if not known.keys() >= set(ids) or len(set(ids)) < len(ids):
            with pytest.raises((NotFound, Conflict)):
                correct(self.database, self.model, rows)
            return
        changed = []
        for row in rows:
            old, before = known[row.id]
            split = before.split if row.split is None else row.split
            weight = before.weight if row.weight is None else row.weight
            after = Row(row.id, row.x, row.y, row.subject or before.subject, split, weight)
            if replace(after, weight=after.times) != replace(before, weight=before.times):
                changed.append(("replaced", (old, after)))
        assert correct(self.database, self.model, rows) == Replaced(len(changed), len(rows) - len(changed))
        self.plain.changes += changed

    @rule(kind=st.sampled_from([ChangeKind.REGULARIZER, ChangeKind.ARCHITECTURE]), number=st.integers(1, 9))
    def change(self, kind: ChangeKind, number: int) -> None:
        position = locked(self.database, self.model, lambda s, m: ledger.change_spec(s, m, kind, {"number": number}))
        self.plain.changes.append((kind.value, {"number": number}))
        assert position == self.head

    @rule(data=st.data())
    def read_the_past(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, self.head))
        since = data.draw(st.integers(0, at))
        then, now = self.plain.training(since), self.plain.training(at)
        model = (self.database, self.model.id, self.model.spec)
        assert contents(passes.read_in_force(*model, at)) == pairs(now)
        assert contents(passes.read_added(*model, since, at)) == pairs(now, but=then)
        assert contents(passes.read_removed(*model, since, at)) == pairs(then, but=now)
        with self.database.read() as session:
            assert spec_at(session, self.model.id, self.model.spec, at) == self.plain.spec(self.model.spec, at)

    @invariant()
    def head_and_counts_agree(self) -> None:
        rows = self.plain.in_force(self.head)
        held = {position: row for position, row in rows.items() if row.holdout}
        now = stored(self.database, self.model)
        assert gap_free(runs(self.database, self.model), self.head)
        assert (now.head, now.train_count, now.holdout_count) == (self.head, len(rows) - len(held), len(held))
        assert contents(passes.read_in_force(self.database, now.id, now.spec, self.head, holdout=True)) == pairs(held)


def settled(row: Row, stored: bool) -> Row:
    """A stored example has a split, whether it came with one or not."""
    return replace(row, split=row.holdout) if stored else row


def pairs(rows: dict[int, Row], but: dict[int, Row] | None = None) -> dict[int, Any]:
    return {position: (row.x, row.y, row.times) for position, row in rows.items() if position not in (but or {})}


@pytest.mark.hypothesis  # so that `make fuzz` runs it
def test_any_history_matches_a_reference_implementation_with_plain_lists(database: Database) -> None:
    steps = settings(
        max_examples=15,
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: LedgerMachine(database), settings=steps)
