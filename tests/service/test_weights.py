"""Weights of examples and classes over REST; `test_formats.py` sends them in every format."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import select

from core.models import catalog
from core.tables.ledger import Example
from tests.service.bodies import ARROW, BODIES, CSV, PARQUET, file, stream
from tests.service.erasure_helpers import act, ask, somebody
from tests.service.expect import add, listed, location, refused, rows
from tests.stack import Stack

THREE = {"kind": "classes", "values": ["a", "b", 7]}


def one(id: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": id, "x": [1, 2], "y": 1, "split": "train", **more}


def weights(api: httpx.Client, name: str) -> dict[str, float]:
    return {row["id"]: row["weight"] for row in listed(api, name)}


def stored(stack: Stack, name: str) -> list[float | None]:
    with stack.database.read() as session:
        model = catalog.find(session, name, None)
        ours = select(Example.weight).where(Example.model_id == model.id).order_by(Example.position)
        return list(session.scalars(ours))


def test_examples_that_count_once_store_nothing_of_it(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [one("a"), one("b", weight=1)])
    add(api, name, [one("c"), one("d", weight=0.25), one("e", weight=None)])
    assert stored(stack, name)[:2] == [None, None]
    assert weights(api, name) == {"a": 1, "b": 1, "c": 1, "d": 0.25, "e": 1}
    assert api.get(f"/v1/models/{name}/examples/d").json()["weight"] == 0.25


def test_a_different_weight_is_different_content(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [one(weight=2)])
    assert add(api, name, [one(weight=2.0)])["duplicates"] == 1
    for other in ({}, {"weight": 1}, {"weight": 3}):
        refused(api.post(f"/v1/models/{name}/examples", json={"examples": [one(**other)]}), 409, "example_conflict")
    add(api, name, [one("b")])
    assert add(api, name, [one("b", weight=1)])["duplicates"] == 1


def test_a_weight_alone_can_be_corrected_and_is_kept_where_it_is_not_given(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [one("a"), one("b", weight=4)])

    def correct(id: str, **content: Any) -> int:
        answer = api.put(f"/v1/models/{name}/examples/{id}", json={"x": [1, 2], "y": 1, **content})
        return int(answer.raise_for_status().json()["replaced"])

    assert correct("a", weight=3) == 1
    assert correct("a", weight=3) == correct("a") == 0
    assert correct("b", y=0) == 1
    assert weights(api, name) == {"a": 3, "b": 4}
    body = {"examples": [one("a", weight=1), one("b", weight=1)]}
    assert api.put(f"/v1/models/{name}/examples", json=body).json()["replaced"] == 2
    assert weights(api, name) == {"a": 1, "b": 1}
    bad = api.put(f"/v1/models/{name}/examples/a", json={"x": [1, 2], "y": 1, "weight": 0})
    assert location(refused(bad, 422, "weight_invalid")) == ["weight"]


def test_examples_are_exported_and_restored_with_their_weights(stack: Stack, api: httpx.Client) -> None:
    name, person = stack.model(), somebody()
    add(api, name, [*rows(4), one("p", weight=2.5, subject=person)])
    export = api.post("/v1/subjects/export", json={"subject": person}).raise_for_status()
    assert '"weight":2.5' in export.text
    id = ask(api, person, hold=True)["id"]
    act(api, id, "refuse", reason="no").raise_for_status()
    assert weights(api, name)["p"] == 2.5


BAD = [0, -1, 1.5e6, np.nan, np.inf]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", [CSV, ARROW, PARQUET])
def test_bad_weights_in_tables_are_named(stack: Stack, api: httpx.Client, kind: str, value: float) -> None:
    name = stack.model()
    given = [one("a", weight=2.0), one("b", weight=value)]
    answer = api.post(f"/v1/models/{name}/examples", content=BODIES[kind](given), headers={"Content-Type": kind})
    assert location(refused(answer, 422, "weight_invalid")) == ["examples", 1, "weight"]
    assert listed(api, name) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CSV, b"id,y,weight,a,b\nq,1,,1,2\nr,1,much,1,2\n"),
        (ARROW, stream(pa.table({"id": ["q"], "y": [1], "x": [[1.0, 2.0]], "weight": ["much"]}))),
        (PARQUET, file(pa.table({"id": ["q"], "y": [1], "x": [[1.0, 2.0]], "weight": [True]}))),
    ],
)
def test_a_weight_must_be_a_number(stack: Stack, api: httpx.Client, kind: str, body: bytes) -> None:
    answer = api.post(f"/v1/models/{stack.model()}/examples", content=body, headers={"Content-Type": kind})
    problem = refused(answer, 422, "weight_invalid")
    assert location(problem)[-1] == "weight"
    assert "must be a number above 0 and up to 1000000" in problem["detail"]


def test_a_large_body_keeps_the_weights_of_its_parts(stack: Stack, api: httpx.Client) -> None:
    """Bodies beyond some megabytes are read part by part."""
    name = stack.model(input={"kind": "vector", "dim": 3000})
    given = [{"id": f"e{i}", "x": [0.123456789] * 3000, "y": 1, "split": "train"} for i in range(140)]
    given[100]["weight"] = 7
    for kind in ("application/json", "application/x-ndjson"):
        body = BODIES[kind]([{**row, "id": kind[-6:] + row["id"]} for row in given])
        answer = api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 201, answer.text
    assert [id for id, weight in weights(api, name).items() if weight != 1] == ["n/jsone100", "ndjsone100"]


def test_a_column_cannot_be_called_weight(api: httpx.Client) -> None:
    columns = [{"name": "weight", "type": "number"}]
    body = {"name": "m", "input": {"kind": "table", "columns": columns}, "target": {"kind": "binary"}}
    assert "'weight' is reserved" in refused(api.post("/v1/models", json=body), 422)["detail"]


def test_classes_have_weights(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=THREE, class_weight={"a": 2, "7": 0.5})
    assert api.get(f"/v1/models/{name}").json()["class_weight"] == {"a": 2.0, "7": 0.5}
    add(api, name, [one(f"e{i}", y=y) for i, y in enumerate(["a", "b", 7] * 5)])
    number = stack.train(name)
    version = api.get(f"/v1/models/{name}/versions/{number}").json()
    assert version["spec"]["class_weight"] == {"a": 2.0, "7": 0.5}
    assert "class_weight" not in api.get(f"/v1/models/{stack.model()}").json()


@pytest.mark.parametrize(
    ("target", "given", "where", "code"),
    [
        ({"kind": "number"}, {"1": 2}, ["class_weight"], "class_weight_invalid"),
        ({"kind": "count"}, {"1": 2}, ["class_weight"], "class_weight_invalid"),
        (THREE, {"c": 2}, ["class_weight", "c"], "class_weight_invalid"),
        ({"kind": "binary"}, {"yes": 2}, ["class_weight", "yes"], "class_weight_invalid"),
        (THREE, {"a": 0}, ["class_weight", "a"], None),
        (THREE, {"a": 1e9}, ["class_weight", "a"], None),
        (THREE, {}, ["class_weight"], None),
        (THREE, "balanced", ["class_weight"], None),
    ],
)
def test_class_weights_of_unknown_classes_are_refused(
    api: httpx.Client, target: Any, given: Any, where: list[str], code: str | None
) -> None:
    body = {"name": "m", "input": {"kind": "vector", "dim": 2}, "target": target, "class_weight": given}
    assert location(refused(api.post("/v1/models", json=body), 422, code)) == where


def test_a_renamed_class_must_keep_its_class_weight(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=THREE, class_weight={"a": 2})

    def change(values: list[Any], **merge: Any) -> httpx.Response:
        target = {"kind": "classes", "values": values, **({"merge": merge} if merge else {})}
        return api.post(f"/v1/models/{name}/changes", json={"target": target})

    refused(change(["q", "b", 7], a="q"), 422, "class_weight_incompatible")
    problem = refused(change(["b", 7], a="b"), 422, "class_weight_incompatible")
    assert "class_weight gives 'a' the weight 2 and 'b' the weight 1" in problem["detail"]
    assert api.get(f"/v1/models/{name}").json()["head"] == 0
    change(["a", "b"], **{"7": "b"}).raise_for_status()
    change(["a", "b", "new"]).raise_for_status()
