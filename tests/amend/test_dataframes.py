"""Frames of inputs: which columns are taken, in what order, and what is said of those that do not fit."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from amend import Client, example_batches
from amend.dataframes import is_frame, read_inputs, to_input_table
from amend.responses import Model, Version

AGE, PLAN = {"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["free", "paid"]}
TABLE = {"kind": "table", "columns": [AGE, PLAN]}
VECTOR = {"kind": "vector", "dim": 2}
ROWS = [{"age": 39.0, "plan": "paid"}, {"age": None, "plan": "free"}, {"age": 51.0, "plan": None}]
FRAME = pd.DataFrame({"plan": ["paid", "free", None], "y": [1, 0, 1], "age": [39, None, 51], "id": ["a", "b", "c"]})


class Foreign:
    """A frame of a library that is not here, and speaks Arrow as polars does."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.table = pa.Table.from_pandas(frame, preserve_index=False)
        self.columns = self.table.column_names

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def rows(frame: Any, described: dict[str, Any]) -> list[Any]:
    return [row for some in read_inputs(frame, "loans", described) for row in some]


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME.set_index("id"),
        FRAME.astype({"plan": "category", "age": "Int64"}),
        pa.Table.from_pandas(FRAME),
        pa.RecordBatch.from_pandas(FRAME, preserve_index=False),
        Foreign(FRAME),
    ],
    ids=["pandas", "index", "types", "pyarrow", "record batch", "foreign"],
)
def test_the_columns_of_a_table_are_found_by_their_names(frame: Any) -> None:
    assert is_frame(frame)
    if isinstance(frame, pa.Table):
        frame = frame.select([name for name in frame.column_names if not name.startswith("__")])
    assert rows(frame, TABLE) == ROWS
    assert all(list(row) == ["age", "plan"] for row in rows(frame, TABLE))


def test_a_category_of_whole_numbers_stays_one_where_a_value_is_missing() -> None:
    described = {"kind": "table", "columns": [{"name": "floor", "type": "category", "values": [1, 2]}]}
    found = rows(pd.DataFrame({"floor": [1, None, 2]}), described)
    assert found == [{"floor": 1}, {"floor": None}, {"floor": 2}]
    assert [type(row["floor"]) for row in found] == [int, type(None), int]


def test_dates_and_booleans_go_out_as_json_has_them() -> None:
    described = {"kind": "table", "columns": [{"name": "d", "type": "date"}, {"name": "b", "type": "boolean"}]}
    frame = pd.DataFrame({"d": pd.to_datetime(["2024-03-05 10:30", None]), "b": pd.array([True, None], "boolean")})
    found = [{"d": "2024-03-05T10:30:00", "b": True}, {"d": None, "b": None}]
    assert rows(frame, described) == rows(pa.Table.from_pandas(frame), described) == found
    assert rows(frame.assign(d=frame["d"].dt.date), described)[0] == {"d": "2024-03-05", "b": True}


def test_the_columns_of_a_vector_are_taken_in_their_order() -> None:
    frame = pd.DataFrame({"id": ["a"], "height": [1.5], "y": [0], "weight": [3.0], "a": [2]})
    assert rows(frame, VECTOR) == [(1.5, 2)]
    assert rows(pd.DataFrame(np.eye(2)), VECTOR) == [(1.0, 0.0), (0.0, 1.0)]
    assert rows(pd.DataFrame({"x": [[1.5, 2.0]], "y": [1]}), VECTOR) == [[1.5, 2.0]]


@pytest.mark.parametrize(
    ("frame", "described", "told"),
    [
        (FRAME.drop(columns="age"), TABLE, "The frame lacks 'age'. The columns of loans are 'age', 'plan'"),
        (FRAME.rename(columns={"age": "Age"}), TABLE, "The frame lacks 'age'. Is 'Age' meant to be 'age'? The columns"),
        (FRAME[["age"]], VECTOR, "loans takes 2 numbers, but the frame has 1 columns: 'age'"),
    ],
)
def test_columns_that_do_not_fit_are_named(frame: Any, described: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        rows(frame, described)


def test_columns_that_are_not_inputs_are_ignored() -> None:
    """So the frame of `add_examples` can be given, whatever its target is called."""
    assert rows(FRAME.assign(left=1), TABLE) == rows(FRAME, TABLE)


def test_a_list_of_texts_becomes_a_table() -> None:
    for texts in (["good", None], pd.Series(["good", None])):
        assert to_input_table(texts, "reviews", {"kind": "text"}).to_pydict() == {"text": ["good", None]}


def test_inputs_that_are_not_frames_are_recognised() -> None:
    for inputs in (np.eye(2), [[1, 2]], {"columns": 1}, pd.Series([[1, 2]]), pa.array([[1, 2]])):
        assert not is_frame(inputs)


def test_all_rows_are_predicted_by_the_champion_and_read_as_that_version_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 2)
    read = Client.read
    # all else of a model, and of a version, is beside the point
    only = {Model: SimpleNamespace(input=VECTOR, champion=7), Version: SimpleNamespace(spec={"input": TABLE})}
    monkeypatch.setattr(Client, "read", lambda *given: only.get(given[1]) or read(*given))
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200)
        asked.append(json.loads(request.content))
        rows = len(asked[-1]["inputs"])
        return httpx.Response(200, json={"version": asked[-1].get("version", 7), "outputs": [{"mean": 0.5}] * rows})

    with Client("http://amend.test", "key", transport=httpx.MockTransport(answer)) as client:
        found = client.predict("loans", FRAME)
    assert (found.version, len(found.outputs)) == (7, 3)
    assert [body.get("version") for body in asked] == [7, 7]


def test_long_frames_go_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 2)
    for frame in (FRAME, Foreign(FRAME)):
        assert [len(some) for some in read_inputs(frame, "loans", TABLE)] == [2, 1]
