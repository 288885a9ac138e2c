"""Examples in five formats give the same rows, and invalid bytes are refused."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.service.bodies import ARROW, BODIES, CSV, NDJSON, PARQUET, file, stream
from tests.service.expect import add, listed, location, refused, rows
from tests.stack import Stack

TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "job, or none", "type": "category", "values": ["a", 'say "b"', "ü"]},
        {"name": "floor", "type": "category", "values": [1, 2, -3]},
    ],
}
KINDS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "vector, binary": ({}, [[0.1, -2.5e-30], [3.0, 16777216.0], [0.0, 1.0]], [1, 0, 1]),
    "vector, classes": (
        {"target": {"kind": "classes", "values": ["low", "ü", 7]}},
        [[0, 1], [1, 2], [2, 3]],
        ["low", 7, "ü"],
    ),
    "vector, whole classes": ({"target": {"kind": "classes", "values": [5, 3, -1]}}, [[0, 1]] * 3, [3, -1, 5]),
    "vector, number": ({"target": {"kind": "number"}}, [[0, 1], [1, 2], [2, 3]], [0.1, -1e12, 1.0]),
    "vector, count": ({"target": {"kind": "count"}}, [[0, 1], [1, 2], [2, 3]], [0, 7, 123456789]),
    "image": (
        {"input": {"kind": "image", "shape": [1, 2, 2]}},
        [[[[0.5, 1], [2, 3]]], [[[4, 5], [6, 7.25]]], [[[0, 0], [0, 1]]]],
        [0, 1, 0],
    ),
    "image of bytes": (
        {"input": {"kind": "image", "shape": [2, 1, 2], "dtype": "uint8"}},
        [[[[0, 255]], [[1, 2]]], [[[4, 5]], [[6, 7]]], [[[0, 0]], [[0, 1]]]],
        [0, 1, 0],
    ),
    "table": (
        {"input": TABLE},
        [
            {"age": 39.5, "job, or none": "a", "floor": 1},
            {"age": None, "job, or none": 'say "b"', "floor": None},
            {"age": -1, "job, or none": None, "floor": -3},
        ],
        [0, 1, 0],
    ),
}


def send(api: httpx.Client, name: str, body: bytes | str, kind: str) -> httpx.Response:
    return api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": kind})


@pytest.mark.parametrize(("spec", "xs", "ys"), KINDS.values(), ids=KINDS.keys())
def test_all_formats_store_the_same_rows(stack: Stack, api: httpx.Client, spec: Any, xs: Any, ys: Any) -> None:
    given = [
        {"id": "a/1", "subject": "user-7", "x": xs[0], "y": ys[0], "split": "train"},
        {"id": "ü, \"b\" 'c'", "x": xs[1], "y": ys[1], "split": "holdout", "weight": 2.5},
        {"id": "0012", "subject": "", "x": xs[2], "y": ys[2]},
    ]
    del given[2]["subject"]
    stored = {}
    for kind, encode in BODIES.items():
        name = stack.model(**spec)
        answer = send(api, name, encode(given), kind)
        assert answer.status_code == 201, (kind, answer.text)
        assert answer.json() == {"accepted": 3, "duplicates": 0, "first_position": 1, "last_position": 3}
        stored[kind] = listed(api, name)
        # a replay in another format says the same, subjects included
        again = send(api, name, BODIES["application/json"](given), "application/json").json()
        assert (again["accepted"], again["duplicates"]) == (0, 3), kind
    first = stored["application/json"]
    assert [row["id"] for row in first] == ["a/1", "ü, \"b\" 'c'", "0012"]
    assert [row["y"] for row in first] == ys
    assert [row["split"] for row in first[:2]] == ["train", "holdout"]
    assert [row["weight"] for row in first] == [1, 2.5, 1]
    for row, x in zip(first, xs, strict=True):
        assert row["x"] == (x if isinstance(x, dict) else np.float32(x).tolist() if _is_exact(x) else row["x"])
    assert all(rows == first for rows in stored.values())


def _is_exact(x: Any) -> bool:
    """Whether 32 bits hold the numbers as they are."""
    return bool((np.float32(x) == np.float64(x)).all())


def test_numbers_are_shown_as_they_came(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{"id": "a", "x": [0.1, -2.5e-30], "y": 1}])
    assert listed(api, name)[0]["x"] == [0.1, -2.5e-30]


SPELLINGS = {
    "byte order mark": "\ufeffid,y,a,b\nq,1,1,2\n",
    "quotes": '"id","y","a","b"\n"q","1","1","2"\n',
    "CRLF": "id,y,a,b\r\nq,1,1,2\r\n",
    "CR": "id,y,a,b\rq,1,1,2\r",
    "no newline at the end": "id,y,a,b\nq,1,1,2",
    "all three": '\ufeff"id","y","a","b"\r\n"q","1","1.0","2e0"\r\n',
    "other order": "b,a,id,y\n1,2,q,1\n",
    "a name with a comma": 'id,y,"a, b",c\nq,1,1,2\n',
    "empty optional columns": "id,subject,split,y,a,b\nq,,,1,1,2\n",
    "true": "id,y,a,b\nq,true,1,2\n",
    "content type with a charset": "id,y,a,b\nq,1,1,2\n",
}


@pytest.mark.parametrize(("what", "body"), SPELLINGS.items(), ids=SPELLINGS.keys())
def test_csv_is_read_however_it_is_spelt(stack: Stack, api: httpx.Client, what: str, body: str) -> None:
    name = stack.model()
    answer = send(api, name, body, "Text/CSV; charset=utf-8" if "charset" in what else CSV)
    assert answer.status_code == 201, answer.text
    assert [(row["id"], row["x"], row["y"]) for row in listed(api, name)] == [("q", [1, 2], 1)]


def test_ndjson_may_have_crlf_and_a_last_newline(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    lines = '{"id": "a", "x": [1, 2], "y": 1}\r\n{"id": "b", "x": [1, 2], "y": 1}\r\n'
    assert send(api, name, lines, NDJSON).json()["accepted"] == 2


def test_no_content_type_means_json(stack: Stack, api: httpx.Client) -> None:
    assert api.post(f"/v1/models/{stack.model()}/examples", content=BODIES["application/json"](rows(2))).is_success


@pytest.mark.parametrize("x", ["list", "large_list", "fixed", "nested", "float16", "int", "columns"])
def test_arrow_and_parquet_may_hold_x_in_many_ways(stack: Stack, api: httpx.Client, x: str) -> None:
    values = {
        "list": pa.array([[1.0, 2.0], [3.0, 4.0]]),
        "large_list": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.large_list(pa.float32())),
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
        "nested": pa.array([[[1.0], [2.0]], [[3.0], [4.0]]]),
        "float16": pa.array([[np.float16(1), np.float16(2)], [np.float16(3), np.float16(4)]], pa.list_(pa.float16())),
        "int": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8())),
    }
    inputs = {"x": values[x]} if x in values else {"a": pa.array([1, 3]), "b": pa.array([2.0, 4.0])}
    made = pa.table({"id": pa.array(["a", "b"]).dictionary_encode(), "y": [True, False], **inputs})
    for kind, body in ((ARROW, stream(made)), (PARQUET, file(made))):
        name = stack.model()
        answer = send(api, name, body, kind)
        assert answer.status_code == 201, answer.text
        assert [(row["x"], row["y"]) for row in listed(api, name)] == [([1, 2], 1), ([3, 4], 0)]


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", "application/json-seq", "x"])
def test_another_content_type_is_unsupported(stack: Stack, api: httpx.Client, kind: str) -> None:
    refused(send(api, stack.model(), b"{}", kind), 415, "content_type_unsupported")


@pytest.mark.parametrize("kind", BODIES)
def test_a_truncated_body_stores_nothing(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model()
    body = BODIES[kind](rows(200))
    refused(send(api, name, body[: len(body) // 2 - 3], kind), 400, "body_malformed")
    assert listed(api, name) == []


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("body", [b"", b"\0", b"\xff\xfe\x00", b"PAR1PAR1", b"<html>"], ids=repr)
def test_invalid_bytes_are_refused(stack: Stack, api: httpx.Client, kind: str, body: bytes) -> None:
    answer = send(api, stack.model(), body, kind)
    if kind == CSV and body != b"\xff\xfe\x00":  # a text: one line of column names, and none that is needed
        refused(answer, 422, "example_invalid")
    elif body == b"" and kind in (NDJSON, ARROW):
        refused(answer, 422, "batch_empty")
    else:
        refused(answer, 400, "body_malformed")


@pytest.mark.parametrize("kind", [ARROW, PARQUET, CSV])
def test_a_column_name_that_is_no_text_is_refused(stack: Stack, api: httpx.Client, kind: str) -> None:
    body = BODIES[kind]([{"id": "a", "x": [1, 2], "y": 1, "subject": "s"}]).replace(b"subject", b"\xffubject")
    refused(send(api, stack.model(), body, kind), 400, "body_malformed")


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"x": [[1.0, 2.0]], "y": [1]}, "example_invalid"),
    "no y": ({"id": ["a"], "x": [[1.0, 2.0]]}, "example_invalid"),
    "no x": ({"id": ["a"], "y": [1]}, "example_shape_mismatch"),
    "one feature": ({"id": ["a"], "y": [1], "a": [1.0]}, "example_shape_mismatch"),
    "x and features": ({"id": ["a"], "y": [1], "x": [[1.0, 2.0]], "a": [1.0]}, "example_invalid"),
    "text as x": ({"id": ["a"], "y": [1], "x": [["1", "2"]]}, "example_invalid"),
    "text as a feature": ({"id": ["a"], "y": [1], "a": ["1"], "b": [2]}, "example_invalid"),
    "lists as id": ({"id": [["a"]], "y": [1], "x": [[1.0, 2.0]]}, "example_invalid"),
    "fractions as id": ({"id": [1.5], "y": [1], "x": [[1.0, 2.0]]}, "example_invalid"),
    "no rows": ({"id": pa.array([], pa.string()), "y": pa.array([], pa.int8())}, "batch_empty"),
}


@pytest.mark.parametrize(("columns", "code"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_bad_columns_are_refused(stack: Stack, api: httpx.Client, columns: Any, code: str) -> None:
    for kind, encode in ((ARROW, stream), (PARQUET, file)):
        refused(send(api, stack.model(), encode(pa.table(columns)), kind), 422, code)


def test_csv_with_two_columns_of_one_name_is_refused(stack: Stack, api: httpx.Client) -> None:
    refused(send(api, stack.model(), "id,y,a,a\nq,1,1,2\n", CSV), 422, "column_invalid")


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "short": ([1.0], "example_shape_mismatch"),
    "long": ([1.0, 2.0, 3.0], "example_shape_mismatch"),
    "missing": ([1.0, None], "example_invalid"),
    "not finite": ([1.0, float("inf")], "number_not_finite"),
    "not a number": ([1.0, float("nan")], "number_not_finite"),
    "too large": ([1.0, 1e9], "number_too_large"),
    "too large for 32 bits": ([1.0, 1e39], "number_too_large"),
}


@pytest.mark.parametrize("bad", [0, 3, 5])
@pytest.mark.parametrize(("x", "code"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_arrow_errors_have_the_index_of_the_row(stack: Stack, api: httpx.Client, bad: int, x: Any, code: str) -> None:
    name = stack.model()
    xs = [[1.0, 2.0]] * 6
    made = pa.table({"id": list("abcdef"), "x": pa.array(xs[:bad] + [x] + xs[bad + 1 :]), "y": [0] * 6})
    assert location(refused(send(api, name, stream(made), ARROW), 422, code))[:3] == ["examples", bad, "x"]
    assert listed(api, name) == []


@pytest.mark.parametrize("cell", ["zz", "", "nan", "inf", "1e39", "1e999"])
def test_csv_errors_have_the_index_of_the_row(stack: Stack, api: httpx.Client, cell: str) -> None:
    name = stack.model()
    body = f"id,y,a,b\np,1,1,2\nq,1,{cell},2\nr,1,1,2\n"
    assert location(refused(send(api, name, body, CSV), 422))[:2] == ["examples", 1]
    assert listed(api, name) == []


def test_csv_of_a_table_has_missing_values(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input={"kind": "table", "columns": [{"name": "n", "type": "number"}]})
    for cell, code, said in (
        ("NA", "example_invalid", "expected a number; leave the field empty if the value is missing"),
        ("inf", "number_not_finite", "must be finite; send a missing value as null, or in CSV as an empty field"),
    ):
        problem = refused(send(api, name, f"id,y,n\np,1,2\nq,1,{cell}\n", CSV), 422, code)
        assert problem["errors"] == [{"loc": ["examples", 1, "n"], "msg": said}]
    assert send(api, name, "id,y,n\np,1,\n", CSV).status_code == 201


def test_arrows_file_format_is_refused_with_a_hint(stack: Stack, api: httpx.Client) -> None:
    sink = pa.BufferOutputStream()
    made = pa.table({"id": ["a"], "x": [[1.0, 2.0]], "y": [0]})
    with pa.ipc.new_file(sink, made.schema) as file:
        file.write_table(made)
    problem = refused(send(api, stack.model(), sink.getvalue().to_pybytes(), ARROW), 400, "body_malformed")
    assert "Send the Arrow stream format" in problem["detail"]


def test_ndjson_errors_have_the_index_of_the_line(stack: Stack, api: httpx.Client) -> None:
    lines = '{"id": "a", "x": [1, 2], "y": 1}\n{"id": "b", "x": [1, "2"], "y": 1}'
    assert location(refused(send(api, stack.model(), lines, NDJSON), 422, "example_invalid")) == ["examples", 1, "x", 1]


ONE = '{"id":"a","x":[1,2],"y":0}'
JSON = {NDJSON: "{}\n{}", "application/json": '{{"examples":[{},{}]}}'}


@pytest.mark.parametrize(("kind", "form"), JSON.items(), ids=["lines", "body"])
@pytest.mark.parametrize(
    "id_", [r"\"x\":[7,8]", r"\"x\": [7,8]", "]", "[", r"\\"], ids=["x", "spaced x", "closes", "opens", "backslash"]
)
def test_an_id_that_looks_like_an_input_is_an_id(
    stack: Stack, api: httpx.Client, kind: str, form: str, id_: str
) -> None:
    name = stack.model()
    assert send(api, name, form.format(ONE, f'{{"id":"{id_}","y":1,"x":[3,4]}}'), kind).status_code == 201
    first, second = listed(api, name)
    assert (first["id"], first["x"], first["y"]) == ("a", [1, 2], 0)
    assert (second["id"], second["x"], second["y"]) == (id_.replace(r"\"", '"').replace(r"\\", "\\"), [3, 4], 1)


@pytest.mark.parametrize(("kind", "form"), JSON.items(), ids=["lines", "body"])
@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ('{"id":"b","x":null,"y":0}', ["x"]),
        ('{"id":"b","y":0}', []),
        ('{"id":"b","x":[[3],4],"y":0}', ["x", 0]),
        ('{"id":"b","x":[3,"]"],"y":0}', ["x", 1]),
        (r'{"id":"b","a\"x":[3,4],"y":0}', []),
    ],
    ids=["null", "missing", "nested", "text", "another field"],
)
def test_an_extra_input_does_not_compensate_for_an_invalid_one(
    stack: Stack, api: httpx.Client, kind: str, form: str, bad: str, where: list[str | int]
) -> None:
    name = stack.model()
    twice = '{"id":"a","x":[5,6],"x":[1,2],"y":0}'
    problem = refused(send(api, name, form.format(twice, bad), kind), 422, "example_invalid")
    assert location(problem) == ["examples", 1, *where]
    assert not listed(api, name)
