"""Passes over the ledger: their examples, chunks and tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sqlalchemy import text

from core import ledger
from core.database import Database
from core.ledger import layouts, passes, queries
from core.ledger.spec_history import spec_at
from core.tables.ledger import ChangeKind
from core.tables.models import Model
from tests.core.ledger.reference_ledger import Row, add, contents, locked, new_model, remove


@pytest.fixture
def model(database: Database) -> Model:
    return new_model(database)


def test_training_and_holdout_rows_are_read_separately(database: Database, model: Model) -> None:
    add(database, model, [Row("a", split=False), Row("b", split=True), Row("c", split=False)])
    assert contents(passes.read_in_force(database, model.id, model.spec, 3)).keys() == {1, 3}
    assert contents(passes.read_in_force(database, model.id, model.spec, 3, holdout=True)).keys() == {2}


def test_a_pass_is_read_in_bounded_chunks_and_can_be_read_again(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "CHUNK_BYTES", 64 * 72)  # rows of 8 bytes, and 64 for the rest
    rows = [Row(f"e{i}", x=(i, -i), y=i % 2, split=False) for i in range(64 * 2 + 5)]
    add(database, model, rows)
    found = passes.read_in_force(database, model.id, model.spec, len(rows))
    assert [len(chunk) for chunk in found] == [64, 64, 5]
    assert contents(found) == contents(found) == {i: (row.x, row.y, 1.0) for i, row in enumerate(rows, 1)}


def test_a_pass_that_ends_with_a_full_chunk(database: Database, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "CHUNK_BYTES", 64 * 72)
    add(database, model, [Row(f"e{i}", split=False) for i in range(128)])
    assert [len(chunk) for chunk in passes.read_in_force(database, model.id, model.spec, 128)] == [64, 64]


@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 1), (32, 1), (33, 2), (100, 4)])
def test_the_shards_of_a_pass_depend_only_on_the_ledger(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch, n: int, size: int
) -> None:
    monkeypatch.setattr(layouts, "CHUNK_BYTES", 72)  # one row
    if n:
        add(database, model, [Row(f"e{i}", x=(i, 0), split=False) for i in range(n)])
    found = passes.read_in_force(database, model.id, model.spec, n)
    parts = found.shards()
    assert [len(list(part)) for part in parts] == ([size] * (n // size) + [n % size] * (n % size > 0) or [0])
    assert [chunk.key.tolist() for part in parts for chunk in part] == [chunk.key.tolist() for chunk in found]
    every = range(1, n + 1)
    wanted = [*every[::7], *every[-1:]]
    assert found.rows(torch.tensor(wanted, dtype=torch.int64)).key.tolist() == sorted(set(wanted))


def test_an_earlier_position_reads_the_same_rows_as_it_did_then(database: Database, model: Model) -> None:
    add(database, model, [Row("a", split=False), Row("b", split=False)])
    before = contents(passes.read_in_force(database, model.id, model.spec, 2))
    remove(database, model, ["a"])
    add(database, model, [Row("a", y=1.0, split=False)])
    assert contents(passes.read_in_force(database, model.id, model.spec, 2)) == before
    assert contents(passes.read_in_force(database, model.id, model.spec, 0)) == {}


def test_added_and_removed_rows_are_found_without_reading_older_ones(database: Database, model: Model) -> None:
    if not database.sqlite:
        pytest.skip("PostgreSQL chooses by its statistics")
    for found, key in (
        (passes.read_added(database, model.id, model.spec, 5, 9), "position>? AND position<?"),
        (passes.read_removed(database, model.id, model.spec, 5, 9), "removed>? AND removed<?"),
    ):
        with database.engine.connect() as connection:
            query = text(f"EXPLAIN QUERY PLAN SELECT y FROM examples WHERE {found.where}")
            [plan] = connection.execute(query, {**found.values, "after": 5, "until": 9})
        assert f"(model_id=? AND {key})" in plan[-1]


def test_added_and_removed_are_the_difference_of_two_positions(database: Database, model: Model) -> None:
    add(database, model, [Row("a", split=False), Row("b", split=False), Row("held", split=True)])  # 1 2 3
    remove(database, model, ["a"])  # 4
    add(database, model, [Row("c", split=False), Row("d", split=False)])  # 5 6
    remove(database, model, ["c", "held"])  # 7 8
    for since, at, added, removed in [
        (0, 8, {2, 6}, set()),  # a and c came and went
        (3, 8, {6}, {1}),
        (6, 8, set(), {5}),
        (3, 6, {5, 6}, {1}),
        (8, 8, set(), set()),
    ]:
        assert contents(passes.read_added(database, model.id, model.spec, since, at)).keys() == added
        assert contents(passes.read_removed(database, model.id, model.spec, since, at)).keys() == removed


def test_reading_by_position_finds_removed_examples_too(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "VALUES_PER_QUERY", 2)
    add(database, model, [Row(f"e{i}", x=(i, 0), split=i % 2 == 0) for i in range(1, 8)])
    remove(database, model, ["e5"])
    with database.read() as session:
        found = passes.read_positions(session, model.id, model.spec, [7, 5, 2, 1, 99], 99)
        nothing = passes.read_positions(session, model.id, model.spec, [], 99)
    assert found.key.tolist() == [1, 2, 5, 7]
    assert found.x[:, 0].tolist() == [1, 2, 5, 7]
    assert (len(nothing), nothing.x.shape, nothing.y.shape) == (0, (0, 2), (0, 1))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_images_keep_their_shape_and_type(database: Database, dtype: str) -> None:
    model = new_model(database, input={"kind": "image", "shape": [3, 2, 4], "dtype": dtype})
    pixels = np.arange(24) * 10 + (0.5 if dtype == "float32" else 0)
    add(database, model, [Row("a", x=tuple(pixels), split=False)], dtype)
    (chunk,) = passes.read_in_force(database, model.id, model.spec, 1)
    assert chunk.x.shape == (1, 3, 2, 4)
    assert str(chunk.x.dtype) == f"torch.{dtype}"
    assert chunk.x.flatten().tolist() == pixels.tolist()


def test_missing_values_of_tables_are_nan(database: Database) -> None:
    columns = [{"name": "age", "type": "number"}, {"name": "job", "type": "category", "values": ["x", "y"]}]
    model = new_model(database, input={"kind": "table", "columns": columns})
    rows = [Row("a", x=(39.0, math.nan), split=False), Row("b", x=(math.nan, 1.0), split=False)]
    add(database, model, rows)
    (chunk,) = passes.read_in_force(database, model.id, model.spec, 2)
    assert chunk.x.nan_to_num(-1.0).tolist() == [[39.0, -1.0], [-1.0, 1.0]]
    assert add(database, model, rows).duplicates == 2  # a missing value equals itself


def test_classes_are_one_hot(database: Database) -> None:
    model = new_model(database, target={"kind": "classes", "values": ["x", "y", "z"]})
    add(database, model, [Row("a", y=2, split=False), Row("b", y=0, split=False)])
    (chunk,) = passes.read_in_force(database, model.id, model.spec, 2)
    assert chunk.y.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert chunk.y.dtype == torch.float64


def test_numbers_keep_every_bit(database: Database) -> None:
    model = new_model(database, target={"kind": "number"})
    smallest, largest = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
    add(database, model, [Row("a", x=(smallest, largest), y=math.pi, split=False)])
    assert contents(passes.read_in_force(database, model.id, model.spec, 1)) == {1: ((smallest, largest), math.pi, 1.0)}


def test_the_spec_at_a_position_includes_the_changes_until_then(database: Database, model: Model) -> None:
    l2 = {"kind": "l2", "delta": 9.0, "penalize_bias": True}
    mlp = {"kind": "mlp", "hidden": [3]}
    add(database, model, [Row("a")])
    locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.REGULARIZER, l2))
    locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.ARCHITECTURE, mlp))
    locked(database, model, lambda s, m: ledger.change_spec(s, m, ChangeKind.REGULARIZER, {**l2, "delta": 1.5}))
    with database.read() as session:
        specs = [spec_at(session, model.id, model.spec, at) for at in range(5)]
    assert specs[0] == specs[1] == model.spec
    assert specs[2] == {**model.spec, "regularizer": l2}
    assert specs[3] == {**model.spec, "regularizer": l2, "architecture": mlp}
    assert specs[4]["regularizer"]["delta"] == 1.5
