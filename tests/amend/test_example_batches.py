"""Examples of any form -> bodies that the service reads, none too large."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

from amend import PackageMissing, example_batches
from amend.example_batches import ARROW, NDJSON, Batch

N = 25


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)


def read(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a body."""
    if batch.content_type == NDJSON:
        return [json.loads(line) for line in batch.content.splitlines()]
    assert batch.content_type == ARROW
    rows: list[dict[str, Any]] = pa.ipc.open_stream(batch.content).read_all().to_pylist()
    return rows


def rows(examples: Any) -> list[dict[str, Any]]:
    """All rows of all bodies, which are as many as there should be."""
    made = list(example_batches.split(examples))
    assert [batch.count for batch in made] == [10, 10, 5]
    assert [len(read(batch)) for batch in made] == [10, 10, 5]
    return [row for batch in made for row in read(batch)]


X = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
ONE_BY_ONE = [{"id": f"e{i}", "y": i % 2, "x": [2.0 * i, 2.0 * i + 1]} for i in range(N)]
IDS, Y = [row["id"] for row in ONE_BY_ONE], np.arange(N) % 2
COLUMNS = {"id": IDS, "y": Y, "x": X}
FRAME = pd.DataFrame({"id": IDS, "y": Y, "a": X[:, 0], "b": X[:, 1]})


TABLE = pa.table({**COLUMNS, "x": pa.array(X.tolist())})
FORMS: dict[str, Callable[[], Any]] = {
    "columns": lambda: COLUMNS,
    "columns of lists": lambda: {**COLUMNS, "x": X.tolist(), "y": Y.tolist(), "id": np.array(IDS)},
    "columns in another order": lambda: {**COLUMNS, "x": np.asfortranarray(X)},
    "columns of images": lambda: {**COLUMNS, "x": X.reshape(N, 1, 2, 1)},
    "columns of Arrow": lambda: {**COLUMNS, "x": pa.array(X.tolist())},
    "table": lambda: TABLE,
    "reader": lambda: TABLE.to_reader(max_chunksize=5),
    "record batch": lambda: TABLE.to_batches()[0],
    "frame": lambda: pd.DataFrame({"id": IDS, "y": Y, "x": list(X)}),
    "list": lambda: ONE_BY_ONE,
    "generator": lambda: ({**row, "x": np.array(row["x"]), "y": Y[i]} for i, row in enumerate(ONE_BY_ONE)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_rows(form: str) -> None:
    assert rows(FORMS[form]()) == ONE_BY_ONE


def test_a_frame_keeps_its_columns_and_an_index_only_if_it_is_the_id() -> None:
    expected = FRAME.to_dict("records")
    assert rows(FRAME) == expected
    assert rows(FRAME.set_axis(range(100, 100 + N), axis=0)) == expected
    by_id = rows(FRAME.set_index("id"))
    assert sorted(by_id[0]) == ["a", "b", "id", "y"]
    assert [row["id"] for row in by_id] == IDS


def test_bodies_stay_below_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_BYTES", 4_000)
    x = np.random.default_rng(0).normal(size=(N, 100)).astype(np.float32)
    columns = {"id": IDS, "y": Y, "x": x}
    table = pa.table({"id": IDS, "y": Y, "x": pa.array(x.tolist(), pa.list_(pa.float32(), 100))})
    one_by_one = [{"id": "e", "x": row} for row in x]
    for examples in (columns, table, table.to_reader(), one_by_one):
        made = list(example_batches.split(examples))
        assert sum(batch.count for batch in made) == N
        # Arrow adds a head of its own, once; what a slice leaves out must not go with it
        assert max(len(batch.content) for batch in made) < 5_500
        assert len(made) <= N // 2 or examples is one_by_one


def test_a_row_above_the_size_limit_is_sent_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_BYTES", 10)
    assert [batch.count for batch in example_batches.split(ONE_BY_ONE[:3])] == [1, 1, 1]
    assert [batch.count for batch in example_batches.split({"id": IDS[:3], "x": X[:3]})] == [1, 1, 1]


def test_a_generator_is_consumed_as_its_examples_go_out() -> None:
    taken = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for row in ONE_BY_ONE:
            taken += 1
            yield row

    bodies = example_batches.split(source())
    assert taken == 0
    next(bodies)
    assert taken == 11


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        list(example_batches.split({"id": IDS, "y": Y[:-1], "x": X}))


def test_one_example_alone_is_a_batch() -> None:
    [batch] = example_batches.split(ONE_BY_ONE[0])
    assert read(batch) == ONE_BY_ONE[:1]


def test_values_of_other_libraries_go_out_as_json_has_them() -> None:
    x = {"since": pd.Timestamp("2024-03-05 10:30"), "until": pd.NaT, "age": np.float32(0.5), "n": np.int64(3)}
    [batch] = example_batches.split([{"id": "a", "x": x, "y": np.bool_(True)}])
    found = {"since": "2024-03-05T10:30:00", "until": None, "age": 0.5, "n": 3}
    assert read(batch) == [{"id": "a", "x": found, "y": True}]
    with pytest.raises(TypeError, match="Cannot encode a object as JSON"):
        list(example_batches.split([{"id": "a", "x": object()}]))


def test_no_examples_make_no_batch() -> None:
    for nothing in ([], {}, {"id": [], "x": []}, FRAME[:0], TABLE[:0], TABLE[:0].to_reader()):
        assert list(example_batches.split(nothing)) == []


@pytest.mark.parametrize("form", ["columns", "table", "record batch", "frame"])
def test_without_pyarrow_the_error_says_what_to_install(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = FORMS[form]()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PackageMissing, match="pip install pyarrow"):
        list(example_batches.split(examples))
    assert next(example_batches.split(ONE_BY_ONE)).count == 10


SPARSE = np.where(X % 3 == 0, X, 0)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array", "lil_matrix"])
def test_a_sparse_matrix_is_sent_dense_in_pieces(form: str) -> None:
    matrix = getattr(scipy.sparse, form)(SPARSE)
    assert [row["x"] for row in rows({**COLUMNS, "x": matrix})] == SPARSE.tolist()
    pieces = list(example_batches.split_rows(matrix))
    assert [len(some) for some in pieces] == [10, 10, 5]
    assert np.concatenate(pieces).tolist() == SPARSE.tolist()


def test_a_wide_sparse_matrix_is_sent_in_pieces_by_dense_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_BYTES", 1000)
    wide = scipy.sparse.csr_array((N, 100), dtype=np.float32)
    assert [len(some) for some in example_batches.split_rows(wide)] == [2] * 12 + [1]
    assert sum(batch.count for batch in example_batches.split({**COLUMNS, "x": wide})) == N


def test_rows_of_a_sparse_matrix_and_sparse_columns_of_a_frame_are_read() -> None:
    matrix = scipy.sparse.csr_matrix(SPARSE)
    assert [row["x"] for row in rows([{**row, "x": matrix[i]} for i, row in enumerate(ONE_BY_ONE)])] == SPARSE.tolist()
    frame = FRAME.astype({"a": pd.SparseDtype("float32", 0)})
    assert rows(frame) == FRAME.to_dict("records")
    with pytest.raises(ValueError, match="two dimensions"):
        list(example_batches.split({**COLUMNS, "x": scipy.sparse.coo_array(np.arange(N))}))
