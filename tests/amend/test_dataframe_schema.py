"""What a model is, read from a frame: kinds, categories, the target, and what is said where that cannot be told."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from amend import example_batches, read_schema
from tests.amend.test_dataframes import Foreign

ROWS = 40
FRAME = pd.DataFrame(
    {
        "customer": [f"c{i}" for i in range(ROWS)],
        "age": [None if i == 7 else 20 + i for i in range(ROWS)],
        "visits": range(ROWS),
        "plan": ["paid", "free", None, "free"] * 10,
        "size": pd.Categorical(["S", "L"] * 20, categories=["S", "M", "L"]),
        "member": pd.array([True, False, None, True] * 10, "boolean"),
        "since": pd.date_range("2024-01-01", periods=ROWS),
        "left": [0, 1] * 20,
    }
)
COLUMNS = [
    {"name": "age", "type": "number"},
    {"name": "visits", "type": "number"},
    {"name": "plan", "type": "category", "values": ["free", "paid"]},
    {"name": "size", "type": "category", "values": ["S", "M", "L"]},
    {"name": "member", "type": "boolean"},
    {"name": "since", "type": "date"},
]


@pytest.mark.parametrize(
    "frame", [FRAME, pa.Table.from_pandas(FRAME), Foreign(FRAME)], ids=["pandas", "arrow", "other"]
)
def test_column_types_and_categories_are_inferred_from_the_frame(frame: Any) -> None:
    found = read_schema(frame, "left", id="customer")
    assert found.input == {"kind": "table", "columns": COLUMNS}
    assert found.target == {"kind": "binary"}
    assert (found.rows, found.left_out, found.notes) == (ROWS, ["customer"], [])


def test_views_of_texts_are_texts() -> None:
    """As polars has them."""
    plan = pa.array(["paid", "free", None], pa.string_view())
    size = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(["S", "L"], pa.string_view()))
    frame = pa.table({"plan": plan, "size": size, "left": [0, 1, 1]})
    assert [column["values"] for column in read_schema(frame, "left").input["columns"]] == [
        ["free", "paid"],
        ["S", "L"],
    ]
    [sent] = example_batches.split(frame)
    read = pa.ipc.open_stream(sent.content).read_all()
    assert (read["plan"].type, read["size"].type.value_type) == (pa.large_string(), pa.large_string())
    assert (read["plan"].to_pylist(), read["size"].to_pylist()) == (["paid", "free", None], ["S", "L", "S"])


def test_polars_is_read_and_sent() -> None:
    frame = pl.from_pandas(FRAME.drop(columns="size")).with_columns(
        size=pl.Series(FRAME["size"].astype(str), dtype=pl.Enum(["S", "M", "L"]))
    )
    found = read_schema(frame, "left", id="customer")
    by_name = {column["name"]: column for column in COLUMNS}
    assert found.input["columns"] == [by_name[name] for name in frame.columns if name in by_name]
    [sent] = example_batches.split(frame)
    read = pa.ipc.open_stream(sent.content).read_all()
    assert read["size"].to_pylist() == FRAME["size"].tolist()
    assert {read["customer"].type, read["size"].type.value_type} == {pa.large_string()}


TARGETS: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "booleans": ([True, False, True], None, {"kind": "binary"}),
    "0 and 1": ([1, 0, 1], None, {"kind": "binary"}),
    "0.0 and 1.0": ([1.0, 0.0, 1.0], None, {"kind": "binary"}),
    "lists": ([["b", "a"], [], ["b"]], None, {"kind": "labels", "values": ["a", "b"]}),
    "lists of numbers": ([[3], [1, 3], []], None, {"kind": "labels", "values": [1, 3]}),
    "texts with separators": (["b|a", "[]", "c"], "labels", {"kind": "labels", "values": ["a", "b", "c"]}),
    "soft labels": ([0.5, 1.0, 0.25], "binary", {"kind": "binary"}),
    "yes and no": (["Yes", "No", "No"], "binary", {"kind": "binary"}),
    "two texts": (["no", "yes", "no"], None, {"kind": "classes", "values": ["no", "yes"]}),
    "two other numbers": ([1, 2, 1], None, {"kind": "classes", "values": [1, 2]}),
    "few whole numbers": ([3, -1, 7], None, {"kind": "classes", "values": [-1, 3, 7]}),
    "fractions": ([0.5, 1.0, 2.0], None, {"kind": "number"}),
    "a categorical": (
        pd.Categorical(["b", "a", "b"], ["b", "c", "a"]),
        None,
        {"kind": "classes", "values": ["b", "c", "a"]},
    ),
    "wanted count": ([0, 1, 4], "count", {"kind": "count"}),
    "wanted number": ([0, 1, 1], "number", {"kind": "number"}),
    "wanted classes": ([0.0, 1.0, 1.0], "classes", {"kind": "classes", "values": [0, 1]}),
    "booleans as classes": ([True, False, True], "classes", {"kind": "classes", "values": ["false", "true"]}),
}


@pytest.mark.parametrize(("values", "wanted", "told"), TARGETS.values(), ids=TARGETS.keys())
def test_the_kind_of_the_target_follows_from_its_values(values: Any, wanted: str | None, told: Any) -> None:
    frame = pd.DataFrame({"age": [1.5, 2, 3], "left": values})
    assert read_schema(frame, "left", target_kind=wanted).target == told


def test_many_whole_numbers_are_a_number() -> None:
    assert read_schema(FRAME, "visits", id="customer").target == {"kind": "number"}


BAD: dict[str, tuple[pd.DataFrame, dict[str, Any], str]] = {
    "names": (FRAME, {}, "Column 'customer' has 40 different texts in 40 rows, too many for a category. Drop it"),
    "many texts": (
        pd.DataFrame({"note": [f"n{i % 1001}" for i in range(3000)], "left": [0, 1] * 1500}),
        {},
        "Column 'note' has 1001 different texts in 3000 rows",
    ),
    "no such target": (FRAME, {"target": "gone"}, "The frame has no column 'gone'. Its columns are 'customer', 'age'"),
    "no such subject": (FRAME, {"subject": "who"}, "The frame has no column 'who'"),
    "no such kind": (
        FRAME,
        {"id": "customer", "target_kind": "yes"},
        "Unknown target_kind 'yes'. It must be one of binary, classes",
    ),
    "lists": (pd.DataFrame({"a": [[1], [2]], "left": [0, 1]}), {}, "Column 'a' has the unsupported type list"),
    "one class": (pd.DataFrame({"a": [1, 2], "left": ["n", "n"]}), {}, "The target 'left' has only one value"),
    "a date": (
        pd.DataFrame({"a": [1], "left": [date(2024, 1, 1)]}),
        {},
        "The target 'left' has the unsupported type date32",
    ),
    "no target": (pd.DataFrame({"a": [1], "left": [None]}), {}, "The target 'left' has no values"),
    "no feature": (pd.DataFrame({"id": [1], "left": [0]}), {}, "The frame has no feature columns"),
    "fractions as classes": (
        pd.DataFrame({"a": [1, 2], "left": [0.5, 1]}),
        {"target_kind": "classes"},
        "The target 'left' has fractions, which cannot be classes",
    ),
}


@pytest.mark.parametrize(("frame", "options", "told"), BAD.values(), ids=BAD.keys())
def test_an_unusable_column_is_named_in_the_error(frame: Any, options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        read_schema(frame, **{"target": "left", **options})


def test_the_inferred_schema_has_a_readable_summary() -> None:
    frame = pd.DataFrame(
        {
            "id": range(4),
            "country": ["DE"] * 4,
            "empty": [np.nan] * 4,
            "blank": pd.Series([None] * 4, dtype="string"),
            "when": [datetime(2024, 1, 1 + i) for i in range(4)],
            "grade": ["a", "b", "b", "c"],
            "left": ["no", "yes", "no", None],
        }
    )
    assert str(read_schema(frame, "left")).splitlines() == [
        "5 columns, inferred from 4 rows:",
        "  'country'  category  DE",
        "  'empty'    number",
        "  'blank'    category  other",
        "  'when'     date",
        "  'grade'    category  a, b, c",
        "target 'left': classes no, yes",
        "excluded: 'id'",
        "'country' has the same value in all rows",
        "'empty' has no values and is treated as a number column; drop it if that is wrong",
        "'blank' has no values; all later values are treated as unseen",
        "the target 'left' is missing in 1 rows, which cannot be added as examples",
    ]


def test_the_client_starts_without_pandas_pyarrow_and_torch() -> None:
    code = "import amend, sys; sys.exit(bool({'pandas', 'pyarrow', 'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
