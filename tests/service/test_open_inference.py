"""The Open Inference Protocol follows its specification and gives the predictions of /v1."""

from __future__ import annotations

import json
import struct
from typing import Any

import httpx
import numpy as np
import pytest

from core.models import catalog
from core.tables.versions import VersionState
from core.versions.queries import find_version
from service.http.json_bodies import MAX_JSON_BYTES
from tests.service.expect import location, refused
from tests.service.test_predictions import TARGETS, X, predict, small_model, trained
from tests.stack import Stack

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "type": "number"},
    {"name": "job", "type": "category", "values": ["a", "b"]},
    {"name": "floor", "type": "category", "values": [1, 2]},
    {"name": "member", "type": "boolean"},
    {"name": "since", "type": "date"},
]
ROWS: list[dict[str, Any]] = [
    {"age": 20.5, "job": "a", "floor": 1, "member": True, "since": "2024-03-05"},
    {"age": 70, "job": None, "floor": 2, "member": False, "since": "2020-01-01"},
    {"age": None, "job": "new", "floor": 2, "member": True, "since": None},
    {"age": 40, "job": "b", "floor": 1, "member": False, "since": "2022-06-30"},
]


def tensor(x: Any, datatype: str = "FP64", name: str = "x", **more: Any) -> dict[str, Any]:
    x = np.asarray(x)
    return {"name": name, "shape": list(x.shape), "datatype": datatype, "data": x.ravel().tolist(), **more}


def infer(api: httpx.Client, path: str, *inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = api.post(f"/v2/models/{path}/infer", json={"inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def outputs(answer: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: np.array(one["data"], object).reshape(one["shape"]).tolist() for one in answer["outputs"]}


@pytest.mark.parametrize("kind", TARGETS)
def test_tensors_get_the_predictions_that_lists_get(stack: Stack, api: httpx.Client, kind: str) -> None:
    target, ys = TARGETS[kind]
    name = trained(stack, api, X.tolist(), ys, target=target)
    expected = predict(api, name, X.tolist())
    answer = infer(api, name, tensor(X), id="42")
    sure = infer(api, name, tensor(X), outputs=[{"name": "std"}, {"name": "interval"}])
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", name, "1")
    found = outputs(answer)
    if kind == "classes":
        assert found["class"] == [[str(one["class"])] for one in expected]
        assert found["probabilities"] == [list(one["probabilities"].values()) for one in expected]
        names = json.loads(answer["outputs"][1]["parameters"]["classes"])
        assert names == target["values"]
    else:
        assert found["mean"] == [[one["mean"]] for one in expected]
        assert found.get("class") == ([[one["class"]] for one in expected] if kind == "binary" else None)
    described = api.get(f"/v2/models/{name}").json()["outputs"]
    told = [{**one, "shape": [-1, one["shape"][1]]} for one in (*answer["outputs"], *sure["outputs"])]
    assert described == [{field: one[field] for field in ("name", "datatype", "shape")} for one in told]


def test_a_table_is_a_tensor_for_each_column(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, ROWS, [0, 1, 1, 0], input={"kind": "table", "columns": COLUMNS})
    described = api.get(f"/v2/models/{name}").json()
    assert {one["name"]: one["datatype"] for one in described["inputs"]} == {
        "age": "FP64",
        "job": "BYTES",
        "floor": "INT64",
        "member": "BOOL",
        "since": "BYTES",
    }
    shapes = [[4, 1], [4]]
    inputs = [
        {**one, "shape": shapes[i % 2], "data": [row[one["name"]] for row in ROWS]}
        for i, one in enumerate(described["inputs"])
    ]
    answer = outputs(infer(api, name, *reversed(inputs)))
    assert answer["mean"] == [[one["mean"]] for one in predict(api, name, ROWS)]


def test_data_may_be_nested_as_the_shape_is(stack: Stack, api: httpx.Client) -> None:
    x = np.random.default_rng(1).integers(0, 256, size=(20, 1, 2, 2))
    ys = (x.sum((1, 2, 3)) > 510).astype(int).tolist()
    name = trained(stack, api, x.tolist(), ys, input={"kind": "image", "shape": [1, 2, 2], "dtype": "uint8"})
    assert api.get(f"/v2/models/{name}").json()["inputs"] == [
        {"name": "x", "datatype": "UINT8", "shape": [-1, 1, 2, 2]}
    ]
    flat, nested = tensor(x, "UINT8"), tensor(x, "UINT8", data=x.tolist())
    assert infer(api, name, flat) == infer(api, name, nested) == infer(api, name, tensor(x.reshape(20, 4), "UINT8"))
    assert outputs(infer(api, name, flat))["mean"] == [[one["mean"]] for one in predict(api, name, x.tolist())]


def test_a_version_can_be_named_and_the_outputs_that_are_wanted(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api, 2)
    for version in (1, 2):
        answer = infer(api, f"{name}/versions/{version}", tensor([[1, 1]], "INT64"), outputs=[{"name": "mean"}])
        assert answer["model_version"] == str(version)
        assert outputs(answer) == {"mean": [[predict(api, name, [[1, 1]], version=version)[0]["mean"]]]}
        assert api.get(f"/v2/models/{name}/versions/{version}/ready").json() == {"name": name, "ready": True}
    assert api.get(f"/v2/models/{name}/versions/1").json()["versions"] == ["2", "1"]
    with stack.database.write() as session:
        find_version(session, catalog.find(session, name, None), 1).state = VersionState.PURGED
    assert api.get(f"/v2/models/{name}").json()["versions"] == ["2"]
    refused(api.get(f"/v2/models/{name}/versions/1"), 409, "version_purged")


def test_an_output_is_written_once(stack: Stack, api: httpx.Client, small_one: str) -> None:
    body = {"inputs": [tensor(X[:1])], "outputs": [{"name": "mean"}, {"name": "mean"}]}
    problem = refused(api.post(f"/v2/models/{small_one}/infer", json=body), 422, "tensor_invalid")
    assert problem["detail"] == "outputs.1.name: was requested more than once"


def test_health_and_metadata(stack: Stack, api: httpx.Client) -> None:
    assert httpx.get(f"{stack.url}/v2/health/live").json() == {"live": True}
    assert httpx.get(f"{stack.url}/v2/health/ready").json() == {"ready": True}  # though there is no worker
    assert api.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    name = stack.model()
    assert api.get(f"/v2/models/{name}").json()["versions"] == []
    problem = refused(api.get(f"/v2/models/{name}/ready"), 409, "champion_missing")
    assert problem["error"] == problem["detail"]


def texts(values: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)


def test_texts_beyond_the_shape_are_not_decoded(stack: Stack, api: httpx.Client) -> None:
    table = [{"job": "a"}, {"job": "b"}]
    columns = [{"name": "job", "type": "category", "values": ["a", "b"]}]
    name = trained(stack, api, table, [0, 1], input={"kind": "table", "columns": columns}, target={"kind": "binary"})
    zeros = bytes(4_000_000)  # a million empty texts
    job = {"name": "job", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(zeros)}}
    head = json.dumps({"inputs": [job]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    answer = api.post(f"/v2/models/{name}/infer", content=head + zeros, headers=length)
    assert (answer.status_code, answer.json()["code"]) == (422, "tensor_invalid")
    assert answer.json()["errors"][0]["msg"] == "expected 1 texts for this shape, got more"


def test_tensors_may_be_bytes_behind_the_json(stack: Stack, api: httpx.Client) -> None:
    columns = [COLUMNS[0], {"name": "job", "type": "category", "values": ["a", "ü"]}]
    table = [{"age": age, "job": job} for age, job in ((20.0, "a"), (None, "ü"), (60.0, "ü"))]
    target = {"kind": "classes", "values": ["ja", "nein"]}
    spec = {"input": {"kind": "table", "columns": columns}, "target": target}
    name = trained(stack, api, table, ["ja", "nein", "ja"], **spec)
    ages, jobs = np.array([20, np.nan, 60], "<f4").tobytes(), texts(["a", "ü", "ü"])
    inputs = [
        {"name": "age", "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": len(ages)}},
        {"name": "job", "shape": [3], "datatype": "BYTES", "parameters": {"binary_data_size": len(jobs)}},
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    answer = api.post(f"/v2/models/{name}/infer", content=head + ages + jobs, headers=length).raise_for_status()
    size = int(answer.headers["Inference-Header-Content-Length"])
    told, tail = json.loads(answer.content[:size]), answer.content[size:]
    first, second = (one["parameters"]["binary_data_size"] for one in told["outputs"])
    expected = predict(api, name, table)
    assert tail[:first] == texts([one["class"] for one in expected])
    assert len(tail) == first + second
    np.testing.assert_array_equal(
        np.frombuffer(tail[first:]).reshape(3, 2), [list(one["probabilities"].values()) for one in expected]
    )


GOOD = {"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1, 2]}
BAD: dict[str, tuple[Any, list[str | int]]] = {
    "no inputs": ({}, []),
    "two": ({"inputs": [GOOD, GOOD]}, ["inputs"]),
    "shape": ({"inputs": [{**GOOD, "shape": [1, 3]}]}, ["inputs", 0, "shape"]),
    "no shape": ({"inputs": [{**GOOD, "shape": []}]}, ["inputs", 0, "shape"]),
    "negative": ({"inputs": [{**GOOD, "shape": [-1, 2]}]}, ["inputs", 0, "shape"]),
    "short": ({"inputs": [{**GOOD, "data": [1]}]}, ["inputs", 0, "data"]),
    "ragged": ({"inputs": [{**GOOD, "shape": [2, 2], "data": [[1, 2, 3], [4]]}]}, ["inputs", 0, "data"]),
    "null": ({"inputs": [{**GOOD, "data": [1, None]}]}, ["inputs", 0, "data", 1]),
    "no data": ({"inputs": [{**GOOD, "data": None}]}, ["inputs", 0, "data"]),
    "datatype": ({"inputs": [{**GOOD, "datatype": "BF16"}]}, ["inputs", 0, "datatype"]),
    "texts": ({"inputs": [{**GOOD, "datatype": "BYTES", "data": ["1", "2"]}]}, ["inputs", 0, "datatype"]),
    "fraction": ({"inputs": [{**GOOD, "datatype": "INT64", "data": [1, 2.5]}]}, ["inputs", 0, "data", 1]),
    "range": ({"inputs": [{**GOOD, "datatype": "UINT8", "data": [1, 256]}]}, ["inputs", 0, "data"]),
    "output": ({"inputs": [GOOD], "outputs": [{"name": "label"}]}, ["outputs", 0, "name"]),
    "no bytes": (
        {"inputs": [{**GOOD, "parameters": {"binary_data_size": 16}}]},
        ["inputs", 0, "parameters"],
    ),
}


@pytest.fixture(scope="module")
def small_one(stack: Stack) -> str:
    with stack.client() as api:
        return small_model(stack, api)


@pytest.mark.parametrize(("body", "loc"), BAD.values(), ids=BAD.keys())
def test_a_bad_tensor_is_refused_with_its_place(
    stack: Stack, api: httpx.Client, small_one: str, body: Any, loc: list[str | int]
) -> None:
    problem = refused(api.post(f"/v2/models/{small_one}/infer", json=body), 422, "tensor_invalid")
    assert problem["error"] == problem["detail"]
    assert not loc or location(problem) == loc


def test_an_unknown_datatype_error_lists_the_known_datatypes(stack: Stack, api: httpx.Client, small_one: str) -> None:
    body = {"inputs": [{**GOOD, "datatype": "FP99"}]}
    detail = refused(api.post(f"/v2/models/{small_one}/infer", json=body), 422, "tensor_invalid")["detail"]
    assert detail.startswith("inputs.0.datatype: must be one of BOOL, INT8,")
    assert detail.endswith("FP16, FP32, FP64, BYTES")


def test_errors_in_a_row_have_its_index(stack: Stack, api: httpx.Client, small_one: str) -> None:
    bad = tensor([[1, 2], [3, 1e39]])
    problem = refused(api.post(f"/v2/models/{small_one}/infer", json={"inputs": [bad]}), 422, "number_too_large")
    assert location(problem) == ["rows", 1]
    none = tensor(np.empty((0, 2)))
    refused(api.post(f"/v2/models/{small_one}/infer", json={"inputs": [none]}), 422, "batch_empty")
    many = {**GOOD, "shape": [10**12, 2]}
    refused(api.post(f"/v2/models/{small_one}/infer", json={"inputs": [many]}), 413, "batch_too_large")
    large = b'{"inputs": []}' + b" " * MAX_JSON_BYTES
    refused(api.post(f"/v2/models/{small_one}/infer", content=large), 413, "body_too_large")


def test_a_table_requires_each_column_exactly_once(stack: Stack, api: httpx.Client) -> None:
    columns = {"kind": "table", "columns": COLUMNS[:2]}
    name = trained(stack, api, [{k: row[k] for k in ("age", "job")} for row in ROWS], [0, 1, 1, 0], input=columns)
    age, job = tensor([1], name="age"), {"name": "job", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    cases: list[tuple[list[dict[str, Any]], list[str | int]]] = [
        ([age], ["inputs"]),
        ([age, age], ["inputs", 1, "name"]),
        ([age, {**job, "name": "x"}], ["inputs", 1, "name"]),
        ([age, {**job, "shape": [2], "data": ["a", "b"]}], ["inputs", 1, "shape"]),
        ([age, {**job, "datatype": "FP64", "data": [0.5]}], ["rows", 0, "job"]),
    ]
    for inputs, loc in cases:
        assert location(refused(api.post(f"/v2/models/{name}/infer", json={"inputs": inputs}), 422)) == loc


@pytest.mark.parametrize(("length", "tail"), [("7", b""), ("1000", b""), ("x", b""), (None, b"12345678")])
def test_bytes_that_are_not_as_announced_are_refused(
    stack: Stack, api: httpx.Client, small_one: str, length: str | None, tail: bytes
) -> None:
    head = json.dumps({"inputs": [GOOD]}).encode()
    given = {"Inference-Header-Content-Length": str(len(head)) if length is None else length}
    answer = api.post(f"/v2/models/{small_one}/infer", content=head + tail, headers=given)
    refused(answer, 400 if length == "7" else 422, "body_malformed" if length == "7" else "tensor_invalid")
