"""Random rows of the ledger: which can be drawn, reproducibility, and the number of rows read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.database import Database
from core.ledger import bulk, random_rows
from core.ledger.random_rows import LedgerDraw
from core.tables.models import Model
from tests.core.ledger.reference_ledger import Row, add, new_model, remove


@pytest.fixture
def model(database: Database) -> Model:
    return new_model(database)


def fill(database: Database, model: Model, many: int) -> None:
    """Rows of which every fifth is holdout; every seventh is removed again."""
    add(database, model, [Row(f"e{i}", (float(i), 0.0), split=i % 5 == 0) for i in range(many)])
    remove(database, model, [f"e{i}" for i in range(0, many, 7)])


def left(many: int) -> set[int]:
    return {i + 1 for i in range(many) if i % 5 and i % 7}


def drawn(draw: LedgerDraw, count: int, seed: int) -> list[int]:
    rows = draw(count, seed)
    assert rows.x[:, 0].tolist() == [key - 1 for key in rows.key.tolist()]
    return [int(key) for key in rows.key.tolist()]


def test_rows_are_distinct_retained_and_the_same_for_the_same_seed(database: Database, model: Model) -> None:
    fill(database, model, 600)
    draw = LedgerDraw(database, model.id, model.spec, 600, 10_000, len(left(600)))
    for count in (50, 150, 10_000):
        first, again, other = drawn(draw, count, 3), drawn(draw, count, 3), drawn(draw, count, 4)
        assert first == again != other
        assert len(set(first)) == len(first) == min(count, len(left(600)))
        assert set(first) <= left(600)
    assert drawn(LedgerDraw(database, model.id, model.spec, 300, 10_000, 206), 10_000, 0) != []
    assert max(drawn(LedgerDraw(database, model.id, model.spec, 300, 10_000, 206), 10_000, 0)) <= 300


def test_holdout_rows_can_be_drawn_instead(database: Database, model: Model) -> None:
    fill(database, model, 600)
    held_out = {i + 1 for i in range(300) if i % 5 == 0 and i % 7}
    found = drawn(LedgerDraw(database, model.id, model.spec, 300, 10_000, len(held_out), holdout=True), 10_000, 0)
    assert set(found) == held_out


def test_every_row_is_drawn_equally_often(database: Database, model: Model) -> None:
    fill(database, model, 600)
    draw = LedgerDraw(database, model.id, model.spec, 600, 10_000, len(left(600)))
    counts = np.zeros(601)
    for seed in range(200):
        counts[drawn(draw, 40, seed)] += 1
    there = sorted(left(600))
    expected = 200 * 40 / len(there)
    assert abs(counts[there] - expected).max() < 6 * np.sqrt(expected)
    assert counts.sum() == 200 * 40


def test_the_number_of_rows_read_does_not_grow_with_the_ledger(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, model, 3_000)
    read: list[int] = []
    original = bulk.select_at

    def noting(session: Any, model_id: int, positions: Any, *more: Any) -> Any:
        read.append(len(positions))
        return original(session, model_id, positions, *more)

    monkeypatch.setattr(bulk, "select_at", noting)
    monkeypatch.setattr(bulk, "positions", None)
    for since in (1_000, 3_000):
        read.clear()
        drawn(LedgerDraw(database, model.id, model.spec, since, 10_000, len(left(since))), 30, 0)
        assert sum(read) < 200


def test_few_rows_among_many_positions_are_found_by_listing_all_positions(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_rows, "MAX_TRIES_PER_ROW", 2)
    add(database, model, [Row(f"e{i}", (float(i), 0.0), split=False) for i in range(400)])
    remove(database, model, [f"e{i}" for i in range(400) if i % 8])
    draw = LedgerDraw(database, model.id, model.spec, 400, 10_000, 50)
    assert len(drawn(draw, 10, 0)) == 10
    assert sorted(drawn(draw, 100, 0)) == list(range(1, 401, 8))


def test_nothing_can_be_drawn_from_nothing(database: Database, model: Model) -> None:
    assert len(LedgerDraw(database, model.id, model.spec, 0, 0, 0)(10, 0)) == 0
