"""The numbers and booleans that an example may contain are the same in every format."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.kprior import MemoryPolicy, certify, train
from core.kprior.data.examples import Examples
from tests.service.bodies import BODIES, CSV
from tests.service.expect import listed, location, refused
from tests.service.test_formats import send
from tests.stack import Stack

NUMBER = {"kind": "table", "columns": [{"name": "n", "type": "number"}]}
CATEGORY = {"kind": "table", "columns": [{"name": "c", "type": "category", "values": ["false", "true", 1]}]}
IMAGE = {"kind": "image", "shape": [1, 1, 2]}

TOO_LARGE: dict[str, tuple[dict[str, Any], Any, Any, Any, Any]] = {
    "number target": ({"target": {"kind": "number"}}, [1, 2], 2.0**49, [1, 2], -1.001 * 2.0**49),
    "hopeless number target": ({"target": {"kind": "number"}}, [1, 2], 1.0, [1, 2], 1e200),
    "count target": ({"target": {"kind": "count"}}, [1, 2], 10**12, [1, 2], 10**12 + 1),
    "vector": ({}, [1, 2.0**26], 1, [1, 2.0**26 + 8], 1),
    "negative": ({}, [1, -(2.0**26)], 1, [-1e30, 1], 1),
    "image": ({"input": IMAGE}, [[[1, 2.0**26]]], 1, [[[1, 2.0**26 + 8]]], 1),
    "column": ({"input": NUMBER}, {"n": 2.0**63}, 1, {"n": 1e19}, 1),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(("spec", "x", "y", "bad_x", "bad_y"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_numbers_too_large_for_a_model_are_refused_with_their_location(
    stack: Stack, api: httpx.Client, kind: str, spec: Any, x: Any, y: Any, bad_x: Any, bad_y: Any
) -> None:
    name = stack.model(**spec)
    good = {"id": "a", "x": x, "y": y}
    assert send(api, name, BODIES[kind]([good]), kind).status_code == 201
    fine = type(y)(1)
    body = BODIES[kind]([{**good, "id": "b", "y": fine}, {"id": "c", "x": bad_x, "y": type(y)(bad_y)}])
    problem = refused(send(api, name, body, kind), 422, "number_too_large")
    where = location(problem)
    assert where[:2] == ["examples", 1]
    field = "y" if y != bad_y else "n" if isinstance(x, dict) else "x"
    assert where[-1] == field or (kind == CSV and str(where[-1]).startswith("f"))
    assert len(listed(api, name)) == 1


def test_the_largest_permitted_feature_can_be_trained_on() -> None:
    """A bound can be given up to the limit; a little above it, none."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    y = torch.randn(60, 1, generator=generator).double()
    spec = {
        "input": {"kind": "vector", "dim": 3},
        "target": {"kind": "number"},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": 1.0, "penalize_bias": False},
    }
    x[7, 1] = 2.0**26
    y[9] = 2.0**49
    data = [Examples(torch.arange(60), x, y)]
    result = train(spec, data, policy=MemoryPolicy(fraction=0.1))
    assert certify(result.state, result.memory, data).certificate.relative < 1e-3


YES: dict[str, tuple[dict[str, Any], list[Any], list[Any], list[Any], list[Any]]] = {
    "binary target": ({}, [[1, 2]] * 2, [True, False], [[1, 2]] * 2, [1, 0]),
    "class": (
        {"target": {"kind": "classes", "values": ["true", "false", 1]}},
        [[1, 2]] * 2,
        [True, False],
        [[1, 2]] * 2,
        ["true", "false"],
    ),
    "number target": ({"target": {"kind": "number"}}, [[1, 2]] * 2, [True, False], [[1, 2]] * 2, [1, 0]),
    "count target": ({"target": {"kind": "count"}}, [[1, 2]] * 2, [True, False], [[1, 2]] * 2, [1, 0]),
    "vector": ({}, [[True, False], [False, False]], [1, 0], [[1, 0], [0, 0]], [1, 0]),
    "image": ({"input": IMAGE}, [[[[True, False]]], [[[False, False]]]], [1, 0], [[[[1, 0]]], [[[0, 0]]]], [1, 0]),
    "number column": ({"input": NUMBER}, [{"n": True}, {"n": False}], [1, 0], [{"n": 1}, {"n": 0}], [1, 0]),
    "category": ({"input": CATEGORY}, [{"c": True}, {"c": False}], [1, 0], [{"c": "true"}, {"c": "false"}], [1, 0]),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(("spec", "xs", "ys", "x", "y"), YES.values(), ids=YES.keys())
def test_true_is_1_among_numbers_and_a_text_among_categories(
    stack: Stack, api: httpx.Client, kind: str, spec: Any, xs: Any, ys: Any, x: Any, y: Any
) -> None:
    name = stack.model(**spec)
    body = BODIES[kind]([{"id": f"e{i}", "x": a, "y": b} for i, (a, b) in enumerate(zip(xs, ys, strict=True))])
    answer = send(api, name, body, kind)
    assert answer.status_code == 201, answer.text
    stored = listed(api, name)
    assert [row["x"] for row in stored] == x
    assert [row["y"] for row in stored] == y


@pytest.mark.parametrize("kind", BODIES)
def test_true_is_refused_by_a_model_without_a_boolean_class(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model(target={"kind": "classes", "values": [0, 1]})
    body = BODIES[kind]([{"id": "a", "x": [1, 2], "y": True}])
    assert location(refused(send(api, name, body, kind), 422, "label_invalid")) == ["examples", 0, "y"]


@pytest.mark.parametrize("cell", ["maybe", "truee", "1x"])
def test_csv_errors_have_the_row_of_an_invalid_number(stack: Stack, api: httpx.Client, cell: str) -> None:
    body = f"id,y,a,b\np,1,true,2\nq,1,FALSE,2\nr,1,{cell},2\ns,1,4,2\n"
    problem = refused(send(api, stack.model(), body, CSV), 422, "example_invalid")
    assert location(problem) == ["examples", 2, "a"]


@pytest.mark.parametrize("kind", BODIES)
def test_a_column_may_be_called_anything(stack: Stack, api: httpx.Client, kind: str) -> None:
    names = ['say "n"', "back\\slash", "[", "{}", "a.b", "ü, or none"]
    name = stack.model(input={"kind": "table", "columns": [{"name": n, "type": "number"} for n in names]})
    x = {n: i for i, n in enumerate(names)}
    assert send(api, name, BODIES[kind]([{"id": "a", "x": x, "y": 1}]), kind).status_code == 201
    assert listed(api, name)[0]["x"] == x


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_values_beyond_64_bits_are_refused(stack: Stack, api: httpx.Client, value: int) -> None:
    """Tables in Arrow and Parquet could not hold them."""
    vector, binary = {"kind": "vector", "dim": 2}, {"kind": "binary"}
    category = {"kind": "table", "columns": [{"name": "c", "type": "category", "values": [1, value]}]}
    for given, target in (
        (vector, {"kind": "classes", "values": [value, 1]}),
        (vector, {"kind": "labels", "values": [1, value]}),
        (category, binary),
    ):
        body = {"name": "too-large", "input": given, "target": target}
        refused(api.post("/v1/models", json=body), 422, "request_invalid")


def test_the_largest_values_of_classes_are_exported(stack: Stack, api: httpx.Client) -> None:
    values = [2**63 - 1, -(2**63)]
    name = stack.model(target={"kind": "classes", "values": values})
    rows = [{"id": f"e{i}", "x": [i, 1.0], "y": value} for i, value in enumerate(values)]
    api.post(f"/v1/models/{name}/examples", json={"examples": rows}).raise_for_status()
    for form in ("arrow", "parquet"):
        exported = api.get(f"/v1/models/{name}/examples/export", params={"format": form}).raise_for_status().content
        table = pa.ipc.open_stream(exported).read_all() if form == "arrow" else pq.read_table(pa.BufferReader(exported))
        assert sorted(table.column("y").to_pylist()) == sorted(values)
