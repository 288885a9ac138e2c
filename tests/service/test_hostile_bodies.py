"""The memory for a body is bounded before it is decompressed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from service.parsing.inputs import inputs_of
from tests.service import hostile
from tests.service.bodies import ARROW, BODIES, CSV, NDJSON, PARQUET, file, stream
from tests.service.expect import JSON, listed, location, refused, rows
from tests.service.test_formats import send
from tests.stack import Stack


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory as Linux has them")
def test_no_body_takes_more_memory_than_a_few_times_its_size() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.service.hostile"], capture_output=True, text=True)
    said = dict(json.loads(line) for line in run.stdout.splitlines())
    assert said == {name: code for name, (*_, code) in hostile.BODIES.items()}, run.stderr


@pytest.mark.parametrize(
    ("kind", "make", "status", "code"),
    [
        (ARROW, lambda: hostile.dictionary_of_lists(100), 422, "example_invalid"),
        (ARROW, lambda: hostile.compressed(20_000), 413, "body_too_large"),
        (PARQUET, hostile.one_row, 413, "body_too_large"),
    ],
    ids=["dictionary of lists", "compressed", "one row"],
)
def test_a_small_body_that_unpacks_to_gigabytes_is_refused(
    stack: Stack, api: httpx.Client, kind: str, make: Any, status: int, code: str
) -> None:
    refused(send(api, stack.model(input=hostile.VECTOR), make(), kind), status, code)
    assert api.get("/healthz").status_code == 200


def test_compressed_bodies_are_read(stack: Stack, api: httpx.Client) -> None:
    made = pa.table({"id": ["a", "b"], "x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    for codec in ("zstd", "lz4"):
        name = stack.model()
        body = stream(made, options=pa.ipc.IpcWriteOptions(compression=codec))
        assert send(api, name, body, ARROW).status_code == 201
        assert [row["x"] for row in listed(api, name)] == [[1, 2], [3, 4]]
    for options in ({"version": "1.0"}, {"data_page_version": "2.0"}, {"compression": "zstd", "use_dictionary": False}):
        name = stack.model()
        assert send(api, name, file(made, **options), PARQUET).status_code == 201
        assert [row["x"] for row in listed(api, name)] == [[1, 2], [3, 4]]


def test_an_encoding_of_unknown_decoded_size_is_refused(stack: Stack, api: httpx.Client) -> None:
    made = pa.table({"id": ["a", "b"], "x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    body = file(made, use_dictionary=False, column_encoding={"id": "DELTA_BYTE_ARRAY"})
    assert "DELTA_BYTE_ARRAY" in refused(send(api, stack.model(), body, PARQUET), 400, "body_malformed")["detail"]


@pytest.mark.parametrize("kind", ["lists of size 0", "lists of lists of size 0", "empty lists"])
def test_lists_of_size_0_do_not_fit(stack: Stack, api: httpx.Client, kind: str) -> None:
    x = {
        "lists of size 0": pa.array([[], []], pa.list_(pa.float64(), 0)),
        "lists of lists of size 0": pa.array([[], []], pa.list_(pa.list_(pa.float64()), 0)),
        "empty lists": pa.array([[], []], pa.list_(pa.list_(pa.float64()))),
    }[kind]
    refused(send(api, stack.model(), stream(pa.table({"id": ["a", "b"], "x": x, "y": [0, 1]})), ARROW), 422)


def test_a_wrong_number_of_columns_is_refused_before_a_row_is_read(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    refused(send(api, name, b"id,y,a,b,c\np,1,1,\xff,3\n", CSV), 422, "example_shape_mismatch")
    made = pa.table({"id": ["a"] * 500, "y": [1] * 500, **{f"f{i}": np.arange(500) for i in range(3)}})
    body = stream(made, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    at = len(body) // 2
    refused(send(api, name, body[:at] + bytes(64) + body[at + 64 :], ARROW), 422, "example_shape_mismatch")
    refused(send(api, name, file(made), PARQUET), 422, "example_shape_mismatch")


def table_of(stack: Stack, width: int) -> tuple[str, dict[str, Any]]:
    """A model of so many columns, and an input whose fields come in another order."""
    columns: list[dict[str, Any]] = [{"name": f"c{i}", "type": "number"} for i in range(width - 1)]
    columns.append({"name": "kind", "type": "category", "values": ["a", "b"], "other": False})
    x = {"kind": "b", **{f"c{i}": i / 8 for i in reversed(range(width - 1))}}
    return stack.model(input={"kind": "table", "columns": columns}), x


@pytest.mark.parametrize("kind", BODIES)
def test_thousands_of_columns_are_found_in_any_order(stack: Stack, api: httpx.Client, kind: str) -> None:
    name, x = table_of(stack, 8000)
    given = [{"id": f"e{i}", "x": x, "y": 1} for i in range(2)]
    assert send(api, name, BODIES[kind](given), kind).status_code == 201
    assert all(row["x"] == x for row in listed(api, name))


@pytest.mark.parametrize("width", [3, 200])
@pytest.mark.parametrize("kind", ["application/json", NDJSON])
def test_a_bad_field_is_named_however_many_there_are(stack: Stack, api: httpx.Client, kind: str, width: int) -> None:
    name, x = table_of(stack, width)
    wrong: dict[str, dict[str, Any]] = {
        "c1": {**x, "c1": "b"},
        "kind": {**x, "kind": "c"},
        "more": {**x, "more": 1},
        "c0": {key: value for key, value in x.items() if key != "c0"},
    }
    for field, given in wrong.items():
        body = BODIES[kind]([{"id": "p", "x": x, "y": 1}, {"id": "q", "x": given, "y": 1}])
        problem = refused(send(api, name, body, kind), 422)
        assert location(problem)[:3] == ["examples", 1, "x"]
        assert field in problem["detail"]


def test_column_names_are_read_once_per_table() -> None:
    """Arrow makes the list of all names anew each time."""
    asked = 0

    class Table:
        num_rows = 1

        @property
        def column_names(self) -> list[str]:
            nonlocal asked
            asked += 1
            return [f"c{i}" for i in range(50)]

        def column(self, _which: Any) -> pa.ChunkedArray:
            return pa.chunked_array([[1.0]])

    table: Any = Table()
    columns = [{"name": f"c{i}", "type": "number"} for i in range(50)]
    inputs_of({"input": {"kind": "table", "columns": columns}}).from_columns(table, "examples")
    inputs_of({"input": {"kind": "vector", "dim": 50}}).from_columns(table, "examples")
    assert asked <= 3


@pytest.mark.parametrize("kind", ["application/json", NDJSON])
def test_a_large_body_is_read_piece_by_piece_and_errors_keep_their_place(
    stack: Stack, api: httpx.Client, kind: str
) -> None:
    name = stack.model(input={"kind": "vector", "dim": 200}, policy={"holdout": 0})
    given: list[dict[str, Any]] = [
        {"id": f'e{i} "x":[ \\ }}', "subject": f"s{i % 7}", "x": [i + j / 7 for j in range(200)], "y": i % 2}
        for i in range(1500)
    ]
    body = BODIES[kind](given)
    assert len(body) > 5 * 2**20
    bad = [*given]
    bad[1400] = {**given[1400], "x": [*given[1400]["x"][:-1], None]}
    assert location(refused(send(api, name, BODIES[kind](bad), kind), 422))[:3] == ["examples", 1400, "x"]
    bad[1400] = {**given[1400], "y": 3}
    assert location(refused(send(api, name, BODIES[kind](bad), kind), 422, "label_invalid")) == ["examples", 1400, "y"]
    refused(send(api, name, body[:-9], kind), 400, "body_malformed")
    if kind == "application/json":
        refused(send(api, name, body[:-1] + b',"more":[1]}', kind), 422, "example_invalid")
    assert listed(api, name) == []
    assert send(api, name, body, kind).json()["accepted"] == 1500
    stored = listed(api, name)
    assert [row["id"] for row in stored] == [row["id"] for row in given]
    assert np.allclose([row["x"] for row in stored], [row["x"] for row in given])


def test_many_inputs_are_predicted_piece_by_piece(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0})
    api.post(f"/v1/models/{name}/examples", json={"examples": rows(20)}).raise_for_status()
    stack.train(name)
    inputs = [[i / 7, 1 / (i + 3)] for i in range(90_000)]
    whole = json.dumps({"inputs": inputs, "version": 1}, indent=4).encode()
    assert len(whole) > 4 * 2**20
    path = f"/v1/models/{name}/predictions"
    made = api.post(path, content=whole, headers=JSON).raise_for_status().json()
    few = api.post(path, json={"inputs": inputs[70_000:70_005]}).json()
    assert made["outputs"][70_000:70_005] == few["outputs"]
    assert len(made["outputs"]) == len(inputs)
    for bad in (None, [1], {"a": 1}, [1, "2"]):
        body = json.dumps({"inputs": [*inputs[:80_000], bad, *inputs[80_001:]]}, indent=4)
        assert location(refused(api.post(path, content=body, headers=JSON), 422))[:2] == ["inputs", 80_000]
    refused(api.post(path, content=b'{"inputs":[' + b"[1,2]," * 10**6 + b"[1,2]]}", headers=JSON), 413)


def test_a_list_of_a_million_invalid_ids_gives_one_error(stack: Stack, api: httpx.Client) -> None:
    path = f"/v1/models/{stack.model()}/removals"
    body = b'{"ids":[' + b"0," * 10**6 + b"0]}"
    assert len(refused(api.post(path, content=body, headers=JSON), 422, "request_invalid")["errors"]) == 1
    body = b'{"ids":[' + b"[]," * 4 * 10**6 + b"0]}"
    refused(api.post(path, content=body, headers=JSON), 413, "body_too_large")


@pytest.mark.parametrize("kind", BODIES)
def test_the_error_for_a_large_batch_says_how_to_split_it(small: Stack, kind: str) -> None:
    with small.client() as api:
        problem = refused(send(api, small.model(), BODIES[kind](rows(11)), kind), 413, "batch_too_large")
    assert "the limit is 5." in problem["detail"]
    # the lines of CSV are counted, but not which of them are empty
    assert ("Send several requests." if kind == CSV else "Send 3 requests.") in problem["detail"]


def test_examples_may_not_take_more_room_than_a_body(small: Stack) -> None:
    with small.client() as api:
        name = small.model(input={"kind": "vector", "dim": 600})
        zeros = [{"id": f"e{i}", "x": [0] * 600, "y": 0} for i in range(2)]
        body = BODIES["application/json"](zeros).replace(b" ", b"")
        assert len(body) < 4096
        refused(send(api, name, body, "application/json"), 413, "batch_too_large")
