"""Targets of several labels over REST: every format, what is returned, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amend import Client
from tests.service.bodies import ARROW, BODIES, CSV, PARQUET, stream
from tests.service.expect import add, listed, location, refused
from tests.stack import Stack

VALUES = ["red", "green", 3]
TARGET = {"kind": "labels", "values": VALUES}
SETS: list[list[Any]] = [["red"], [], ["green", 3], ["red", "green", 3], ["green"]]
COLUMNS = [
    {"name": "age", "type": "number"},
    {"name": "plan", "type": "category", "values": ["free", "paid"]},
]


def rows_of(sets: list[list[Any]] = SETS) -> list[dict[str, Any]]:
    return [{"id": f"e{i}", "x": [i, i % 2], "y": y, "split": "train"} for i, y in enumerate(sets)]


def body_of(kind: str, rows: list[dict[str, Any]]) -> bytes:
    """CSV has the labels in one field; Arrow and Parquet have lists of one type."""
    if kind == CSV:
        return BODIES[kind]([{**row, "y": "|".join(map(str, row["y"])) or "[]"} for row in rows])
    if kind in (ARROW, PARQUET):
        return BODIES[kind]([{**row, "y": [str(one) for one in row["y"]]} for row in rows])
    return BODIES[kind](rows)


@pytest.mark.parametrize("kind", BODIES)
def test_every_format_has_lists_of_labels(stack: Stack, api: httpx.Client, kind: str) -> None:
    name, headers = stack.model(target=TARGET), {"Content-Type": kind}
    path = f"/v1/models/{name}/examples"
    assert api.post(path, content=body_of(kind, rows_of()), headers=headers).status_code == 201
    assert [row["y"] for row in listed(api, name)] == SETS
    assert api.get(f"{path}/e2").json()["y"] == ["green", 3]
    assert api.post(path, content=body_of(kind, rows_of()), headers=headers).json()["duplicates"] == 5
    bad = [*rows_of(), {"id": "new", "x": [0, 0], "y": ["red", "pink"], "split": "train"}]
    answer = api.post(path, content=body_of(kind, bad), headers=headers)
    assert location(refused(answer, 422, "label_invalid")) == ["examples", 5, "y"]


def test_a_label_counts_once_and_in_any_order(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=TARGET)
    add(api, name, [{"id": "a", "x": [1, 2], "y": [3, "red", 3]}])
    assert api.get(f"/v1/models/{name}/examples/a").json()["y"] == ["red", 3]
    assert add(api, name, [{"id": "a", "x": [1, 2], "y": ["red", 3]}])["duplicates"] == 1
    table = pa.table({"id": ["b"], "y": [["red", "red"]], "x": [[1.0, 2.0]]})
    api.post(f"/v1/models/{name}/examples", content=stream(table), headers={"Content-Type": ARROW}).raise_for_status()
    assert api.get(f"/v1/models/{name}/examples/b").json()["y"] == ["red"]


@pytest.mark.parametrize("y", ["red", 1, [["red"]], {"red": 1}, [None], [0.5]])
def test_anything_but_a_list_of_the_values_is_refused(stack: Stack, api: httpx.Client, y: Any) -> None:
    name = stack.model(target=TARGET)
    answer = api.post(f"/v1/models/{name}/examples", json={"examples": [{"id": "a", "x": [1, 2], "y": y}]})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "target", [{"kind": "binary"}, {"kind": "classes", "values": [0, 1]}, {"kind": "number"}, {"kind": "count"}]
)
def test_other_targets_have_no_lists(stack: Stack, api: httpx.Client, target: dict[str, Any]) -> None:
    name = stack.model(target=target)
    answer = api.post(f"/v1/models/{name}/examples", json={"examples": [{"id": "a", "x": [1, 2], "y": [1]}]})
    assert location(refused(answer, 422)) == ["examples", 0, "y"]


@pytest.mark.parametrize(
    "spec",
    [
        {"architecture": {"kind": "mlp"}},
        {"architecture": {"kind": "trees"}},
        {"loss": "squared_hinge"},
        {"class_weight": {"red": 2}},
        {"target": {"kind": "labels", "values": []}},
        {"target": {"kind": "labels", "values": ["a", "a"]}},
        {"target": {"kind": "labels", "values": list(range(51))}},
        {"training": {"removal": {}}},
        {"policy": {"headline": "balanced_accuracy"}},
        {"policy": {"gate": {"metric": "rmse"}}},
    ],
)
def test_a_spec_that_does_not_suit_labels_is_refused(stack: Stack, api: httpx.Client, spec: dict[str, Any]) -> None:
    body = {"name": "refused", "input": {"kind": "vector", "dim": 2}, "target": TARGET, **spec}
    assert api.post("/v1/models", json=body).status_code == 422


def test_labels_arrive_later_and_are_corrected(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=TARGET)
    add(api, name, [{**row, "y": None} for row in rows_of()])
    labels = [{"id": row["id"], "y": row["y"]} for row in rows_of()]
    assert api.post(f"/v1/models/{name}/labels", json={"labels": labels[:2]}).json()["accepted"] == 2
    csv = "id,y\n" + "".join(f"{one['id']},{'|'.join(map(str, one['y'])) or '[]'}\n" for one in labels[2:])
    answer = api.post(f"/v1/models/{name}/labels", content=csv, headers={"Content-Type": CSV})
    assert answer.json()["accepted"] == 3
    assert sorted(str(row["y"]) for row in listed(api, name)) == sorted(map(str, SETS))
    api.put(f"/v1/models/{name}/examples/e0", json={"x": [0, 0], "y": [3]}).raise_for_status()
    assert api.get(f"/v1/models/{name}/examples/e0").json()["y"] == [3]


def test_exports_can_be_sent_again(stack: Stack, api: httpx.Client) -> None:
    name, other = stack.model(target=TARGET), stack.model(target=TARGET)
    add(api, name, rows_of())
    data = api.get(f"/v1/models/{name}/examples/export", headers={"Accept": PARQUET}).raise_for_status().content
    assert pq.read_table(io.BytesIO(data)).column("y").to_pylist()[2] == ["green", "3"]
    api.post(f"/v1/models/{other}/examples", content=data, headers={"Content-Type": PARQUET}).raise_for_status()
    assert [row["y"] for row in listed(api, other)] == SETS
    soft = stack.model()
    add(api, soft, [{"id": f"e{i}", "x": [i, 1], "y": y} for i, y in enumerate([0, 1, 0.5])])
    data = api.get(f"/v1/models/{soft}/examples/export", headers={"Accept": PARQUET}).raise_for_status().content
    assert sorted(pq.read_table(io.BytesIO(data)).column("y").to_pylist()) == [0, 0.5, 1]


@pytest.mark.both_databases
def test_labels_are_added_and_unused_ones_dropped(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=TARGET)
    add(api, name, rows_of([["red"], ["green", "red"]]))
    changes = f"/v1/models/{name}/changes"

    def change(values: list[Any]) -> httpx.Response:
        return api.post(changes, json={"target": {"kind": "labels", "values": values}})

    assert change(["blue", "red", "green"]).status_code == 202
    assert [row["y"] for row in listed(api, name)] == [["red"], ["red", "green"]]
    add(api, name, [{"id": "b", "x": [1, 1], "y": ["blue"]}])
    assert location(refused(change(["red", "green"]), 422, "class_in_use")) == ["target", "values"]
    api.post(f"/v1/models/{name}/removals", json={"ids": ["b"]}).raise_for_status()
    assert change(["green", "red"]).status_code == 202
    assert [row["y"] for row in listed(api, name)] == [["red"], ["green", "red"]]
    assert location(refused(change(["green"]), 422, "class_in_use")) == ["target", "values"]
    refused(api.post(changes, json={"target": {"kind": "classes", "values": ["red", "green"]}}), 422)
    refused(api.post(changes, json={"architecture": {"kind": "mlp"}}), 422, "spec_invalid")


def test_predictions_agree_everywhere(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=TARGET, input={"kind": "table", "columns": COLUMNS}, policy={"threshold": 0.4})
    rng = np.random.default_rng(1)
    examples = [
        {"id": f"e{i}", "x": {"age": float(rng.normal()), "plan": ["free", "paid", None][i % 3]}, "y": SETS[i % 5]}
        for i in range(60)
    ]
    add(api, name, [{**example, "split": "train"} for example in examples])
    version = stack.train(name)
    inputs: list[dict[str, Any]] = [
        {"age": 0.5, "plan": "free"},
        {"age": None, "plan": "paid"},
        {"age": -2.0, "plan": None},
        {"age": 1.0, "plan": "unheard of"},
    ]
    outputs = api.post(f"/v1/models/{name}/predictions", json={"inputs": inputs, "uncertainty": True}).json()["outputs"]
    means = np.array([[output["probabilities"][str(value)] for value in VALUES] for output in outputs])
    for output, mean in zip(outputs, means, strict=True):
        assert output["labels"] == [value for value, p in zip(VALUES, mean, strict=True) if p > 0.4]
        assert set(output["std"]) == set(output["interval"]) == {"red", "green", "3"}
        assert all(low <= p <= high for (low, high), p in zip(output["interval"].values(), mean, strict=True))
    assert "mean" not in outputs[0]
    assert "class" not in outputs[0]
    refused(api.post(f"/v1/models/{name}/predictions", json={"inputs": inputs, "explain": True}), 422)

    tensors = [
        {"name": "age", "datatype": "FP64", "shape": [4, 1], "data": [one["age"] for one in inputs]},
        {"name": "plan", "datatype": "BYTES", "shape": [4, 1], "data": [one["plan"] for one in inputs]},
    ]
    inferred = {t["name"]: t for t in api.post(f"/v2/models/{name}/infer", json={"inputs": tensors}).json()["outputs"]}
    np.testing.assert_allclose(np.reshape(inferred["probabilities"]["data"], (4, 3)), means, atol=1e-12)
    chosen = np.reshape(inferred["labels"]["data"], (4, 3))
    np.testing.assert_array_equal(chosen, means > 0.4)

    file = api.get(f"/v1/models/{name}/versions/{version}/onnx").raise_for_status().content
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    fed = {
        "age": np.array([[np.nan if one["age"] is None else one["age"]] for one in inputs], np.float32),
        "plan": np.array([[one["plan"] or ""] for one in inputs], object),
    }
    found = dict(zip([output.name for output in session.get_outputs()], session.run(None, fed), strict=True))
    np.testing.assert_allclose(found["probabilities"], means, atol=1e-6)
    np.testing.assert_array_equal(found["labels"], chosen)

    with Client(stack.url, stack.admin_key) as client:
        predicted = client.predict(name, inputs)
        np.testing.assert_allclose(predicted.to_numpy(), means, atol=1e-12)
        assert predicted.to_arrow().column("labels").to_pylist()[0] == [str(v) for v in outputs[0]["labels"]]
        table = client.predict_table(name, pa.table({key: [one[key] for one in inputs] for key in ("age", "plan")}))
        np.testing.assert_allclose(table.to_numpy(), means, atol=1e-12)
        assert table.to_arrow().column("labels").to_pylist()[3] == [str(value) for value in outputs[3]["labels"]]
        assert list(table.to_pandas().columns) == ["labels", *(f"probability of {value}" for value in VALUES)]
    coefficients = api.get(f"/v1/models/{name}/versions/{version}/coefficients").json()["items"]
    assert {one["class"] for one in coefficients} == {"red", "green", 3}


def test_frames_have_lists_text_and_yes_and_no(stack: Stack, api: httpx.Client) -> None:
    frame = pd.DataFrame({"id": ["a", "b", "c"], "age": [1.0, 2.0, 3.0], "tags": [["x", "y"], [], ["y"]]})
    texts = frame.assign(tags=["x|y", "[]", "y"])
    answers = frame.assign(tags=["Yes", "No", "yes"])
    with Client(stack.url, stack.admin_key) as client:
        for given, kind in ((frame, None), (texts, "labels")):
            name = stack.model() + "-labels"
            client.create_model(name, given, "tags", id="id", target_kind=kind)
            client.add_examples(name, given, id="id", target="tags")
            assert [row["y"] for row in listed(api, name)] == [["x", "y"], [], ["y"]]
        name = stack.model() + "-binary"
        client.create_model(name, answers, "tags", id="id", target_kind="binary")
        client.add_examples(name, answers, id="id", target="tags")
    assert [row["y"] for row in listed(api, name)] == [1, 0, 1]
