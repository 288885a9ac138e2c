"""The holdout sample that versions are evaluated on: its rows, and that updates do not read the whole ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from core.database import Database
from core.ledger import bulk, holdout_sample, passes
from core.ledger.holdout_sample import Sample, SampledRows
from core.tables.ledger import HoldoutSample
from core.tables.models import Model
from tests.core.ledger.reference_ledger import Row, add, locked, new_model, remove

SIZE = 20


def give(database: Database, model: Model, many: int, first: int = 0, held: bool = True) -> int:
    """Add rows; the position of the last."""
    rows = [Row(f"e{i}", (float(i), 0.0), split=held) for i in range(first, first + many)]
    return add(database, model, rows).last_position or 0


def drop(database: Database, model: Model, positions: Any) -> int:
    """Remove rows of a model whose ids are their positions less one; the head."""
    return remove(database, model, [f"e{position - 1}" for position in positions]).position


def sampled(database: Database, model: Model, at: int, size: int = SIZE) -> list[int]:
    """The positions of the rows that are read."""
    rows = holdout_sample.sample_holdout(database, model.id, model.spec, at, size)
    return [key for chunk in rows for key in chunk.key.tolist()]


def kept(database: Database, model: Model) -> Sample | None:
    with database.read() as session:
        return holdout_sample.as_sample(session.get(HoldoutSample, model.id))


def smallest(positions: Any, size: int = SIZE) -> list[int]:
    """The rows with the smallest hashes."""
    rows = np.array(sorted(positions))
    return sorted(rows[np.argsort(holdout_sample.hashes_of(rows))[:size]].tolist())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The ranges of the ledger that are read for a sample."""
    found: list[dict[str, Any]] = []
    original = bulk.positions

    def noting(session: Any, where: str, values: dict[str, Any]) -> Any:
        found.append(values)
        return original(session, where, values)

    monkeypatch.setattr(bulk, "positions", noting)
    return found


def test_a_small_holdout_is_sampled_completely(database: Database) -> None:
    model = new_model(database)
    give(database, model, 10)
    at = give(database, model, 10, first=10, held=False)
    assert sampled(database, model, at) == list(range(1, 11))
    [chunk] = holdout_sample.sample_holdout(database, model.id, model.spec, at, SIZE)
    [whole] = passes.read_in_force(database, model.id, model.spec, at, holdout=True)
    assert chunk.x.tolist() == whole.x.tolist()
    assert chunk.y.tolist() == whole.y.tolist()


def test_the_sample_of_a_large_holdout_has_the_rows_with_the_smallest_hashes(database: Database) -> None:
    model = new_model(database)
    at = give(database, model, 300)
    assert sampled(database, model, at) == smallest(range(1, 301))


def test_updating_step_by_step_equals_updating_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdout_sample, "POSITIONS_PER_QUERY", 7)
    slow, quick = new_model(database), new_model(database)
    for first in range(0, 200, 25):
        at = give(database, slow, 25, first=first)
        sampled(database, slow, at)
    give(database, quick, 200)
    assert sampled(database, slow, at) == sampled(database, quick, at) == smallest(range(1, 201))


def test_new_rows_above_the_threshold_do_not_replace_removed_ones(database: Database) -> None:
    """Else they would be looked at more often than older ones, and the figures would speak of them alone."""
    model, rng = new_model(database), np.random.default_rng(0)
    there: set[int] = set()
    first, size = 0, 40
    for _ in range(12):
        at = give(database, model, 30, first=first)
        there |= set(range(at - 29, at + 1))
        gone = rng.choice(sorted(there), 12, replace=False).tolist()
        at = drop(database, model, gone)
        there -= set(gone)
        first = at
        found = sampled(database, model, at, size)
        sample = kept(database, model)
        assert sample is not None
        rows = np.array(sorted(there))
        assert found == rows[holdout_sample.hashes_of(rows) <= sample.threshold].tolist()
        assert min(size, len(there)) / 2 <= len(found) <= size


def test_an_update_reads_only_added_and_removed_rows(database: Database, read: list[dict[str, Any]]) -> None:
    model = new_model(database)
    before = give(database, model, 100)
    sampled(database, model, before)
    drop(database, model, [1, 2, 3])
    at = give(database, model, 10, first=103)
    read.clear()
    sampled(database, model, at)
    assert read
    assert all(values.get("after", values.get("since")) >= before for values in read)
    read.clear()
    sampled(database, model, at)
    assert read == []


def test_an_update_without_changes_of_the_holdout_writes_nothing(database: Database) -> None:
    model = new_model(database)
    before = give(database, model, 30)
    sampled(database, model, before)
    at = give(database, model, 10, first=30, held=False)
    sampled(database, model, at)
    sample = kept(database, model)
    assert sample is not None
    assert sample.position == before


def test_the_sample_is_drawn_again_when_half_of_it_was_removed(database: Database) -> None:
    model = new_model(database)
    first = sampled(database, model, give(database, model, 200))
    at = drop(database, model, first[:9])
    assert sampled(database, model, at) == first[9:]
    at = drop(database, model, first[9:12])
    left = set(range(1, 201)) - set(first[:12])
    assert sampled(database, model, at) == smallest(left)


def test_the_sample_is_drawn_again_for_another_size(database: Database) -> None:
    model = new_model(database)
    at = give(database, model, 100)
    assert sampled(database, model, at, 20) == smallest(range(1, 101), 20)
    assert sampled(database, model, at, 30) == smallest(range(1, 101), 30)
    assert sampled(database, model, at, 10) == smallest(range(1, 101), 10)


def test_an_older_position_is_evaluated_on_rows_in_force_then(database: Database) -> None:
    model = new_model(database)
    before = give(database, model, 15)
    at = give(database, model, 100, first=15)
    now = sampled(database, model, at)
    assert sampled(database, model, before) == [position for position in now if position <= before]
    sample = kept(database, model)
    assert sample is not None
    assert sample.position == at


def test_positions_and_subjects_are_those_of_the_rows(database: Database) -> None:
    """With the inputs, or without reading them."""
    model = new_model(database)
    add(database, model, [Row(f"e{i}", split=True, subject=f"p{i % 3}" if i % 2 else None) for i in range(12)])
    remove(database, model, ["e3", "e4"])
    rows = SampledRows(database, model.id, model.spec, 14, np.arange(2, 12))
    keys = [int(key) for chunk in rows for key in chunk.key]
    assert keys == [2, 3, 6, 7, 8, 9, 10, 11]
    positions, subjects = rows.outline()
    assert positions.tolist() == keys
    assert subjects == rows.subjects
    assert sorted(subjects) == [2, 6, 8, 10]
    assert len(set(subjects.values())) == 3


def test_concurrent_updates_agree(database: Database) -> None:
    model = new_model(database)
    ends = [give(database, model, 20, first=20 * i) for i in range(10)]
    with ThreadPoolExecutor(5) as pool:
        made = list(pool.map(lambda at: holdout_sample.update_sample(database, model.id, at, SIZE), ends))
    # what is kept may be of an earlier position: whoever finds the model's row locked leaves it to the next job
    last = kept(database, model)
    assert last is not None
    for sample in (*made, last):
        assert sample == holdout_sample.scan(database, model.id, sample.position, SIZE)
    assert holdout_sample.update_sample(database, model.id, ends[-1], SIZE) == made[-1]


def test_an_update_that_was_overtaken_starts_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(database)
    early = give(database, model, 50)
    late = give(database, model, 50, first=50)
    sampled(database, model, early)
    middle = give(database, model, 50, first=100)
    original, overtaken = holdout_sample.advance, []

    def slowly(*given: Any) -> Sample:
        made = original(*given)
        if not overtaken:
            overtaken.append(True)
            holdout_sample.update_sample(database, model.id, middle, SIZE)
        return made

    monkeypatch.setattr(holdout_sample, "advance", slowly)
    assert holdout_sample.update_sample(database, model.id, late, SIZE).position == middle
    assert kept(database, model) == holdout_sample.scan(database, model.id, middle, SIZE)


def test_the_sample_is_deleted_with_its_model(database: Database) -> None:
    model = new_model(database)
    at = give(database, model, 10)
    sampled(database, model, at)
    locked(database, model, lambda session, found: session.delete(found))
    assert kept(database, model) is None
    holdout_sample.update_sample(database, model.id, at, SIZE)
    assert kept(database, model) is None


def test_training_rows_are_sampled_where_there_is_no_holdout(database: Database) -> None:
    model = new_model(database)
    at = give(database, model, 100, held=False)
    rows = holdout_sample.sample_training(database, model.id, model.spec, at, SIZE)
    assert isinstance(rows, SampledRows)
    assert [key for chunk in rows for key in chunk.key.tolist()] == smallest(range(1, 101))
