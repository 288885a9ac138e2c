"""Unseen values of category columns are read as `other` in every format, counted, and stored with their text."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.service.bodies import BODIES
from tests.service.expect import listed, location, refused
from tests.service.test_exports import export
from tests.service.test_formats import send
from tests.service.test_predictions import predict, trained
from tests.stack import Stack


def table(*values: int | str, **options: Any) -> dict[str, Any]:
    return {"kind": "table", "columns": [{"name": "c", "type": "category", "values": list(values), **options}]}


def examples(*values: Any) -> list[dict[str, Any]]:
    return [{"id": f"e{i}", "x": {"c": value}, "y": i % 2} for i, value in enumerate(values)]


def count_unseen(api: httpx.Client, name: str) -> float:
    found = re.findall(rf'^amend_unseen_categories_total{{model="{name}"}} (\S+)$', api.get("/metrics").text, re.M)
    return float(found[0]) if found else 0.0


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    ("values", "given", "shown"),
    [
        (["a", "b"], ["a", "zebra", None, "b", "A"], ["a", "zebra", None, "b", "A"]),
        (["a", "b"], ["a", "other", None, "b", "x" * 201], ["a", "other", None, "b", "other"]),
        (["a", "other"], ["a", "zebra", None, "a", "b"], ["a", "zebra", None, "a", "b"]),
        ([1, -2], [1, 7, None, -2, 0], [1, "7", None, -2, "0"]),
        ([1, -2], ["1", "7", "", "-2.0", "1.5"], [1, "7", None, -2, "1.5"]),
        (["false", "a"], [False, True, None, False, True], ["false", "true", None, "false", "true"]),
    ],
    ids=["texts", "too long", "a value named other", "whole numbers", "numbers as texts", "booleans"],
)
def test_an_unseen_value_is_counted_and_keeps_its_text_in_every_format(
    stack: Stack, api: httpx.Client, kind: str, values: Any, given: Any, shown: Any
) -> None:
    name = stack.model(input=table(*values))
    answer = send(api, name, BODIES[kind](examples(*given)), kind)
    assert answer.status_code == 201, answer.text
    stored = listed(api, name)
    if kind == "text/csv":  # Python writes True
        shown = ["True" if value == "true" else value for value in shown]
    assert [row["x"]["c"] for row in stored] == shown
    exported = export(api, name).column("c").to_pylist()
    assert exported == [None if value is None else str(value) for value in shown]
    # what is shown can be sent again: it is the same content
    again = [{"id": row["id"], "x": row["x"], "y": row["y"]} for row in stored]
    assert send(api, name, BODIES["application/json"](again), "application/json").json()["duplicates"] == 5
    assert count_unseen(api, name) == 4


@pytest.mark.parametrize("kind", BODIES)
def test_a_column_without_other_refuses_unseen_values(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model(input=table("a", "b", other=False))
    answer = send(api, name, BODIES[kind](examples("a", "zebra")), kind)
    where = location(refused(answer, 422, "category_unknown"))
    assert (where[:2], where[-1]) == (["examples", 1], "c")
    assert "zebra" not in answer.text
    assert not listed(api, name)


def test_a_prediction_takes_an_unseen_value_as_other_and_counts_it(stack: Stack, api: httpx.Client) -> None:
    xs = [{"c": value} for value in ("a", "b", "x", "y", "a", "b", "z", None)]
    name = trained(stack, api, xs, [0, 0, 1, 1, 0, 0, 1, 0], input=table("a", "b"))
    before = count_unseen(api, name)
    known, unseen, other, missing = predict(api, name, [{"c": c} for c in ("a", "never seen", "other", None)])
    assert unseen == other
    assert unseen["mean"] > 0.5 > known["mean"]
    assert missing != unseen
    assert (before, count_unseen(api, name)) == (3, 5)


def test_an_empty_bucket_has_no_weight(stack: Stack, api: httpx.Client) -> None:
    xs = [{"c": value} for value in ("a", "b", "a", "b", "a", "b")]
    name = trained(stack, api, xs, [0, 1, 0, 1, 1, 1], input=table("a", "b"))
    [other, missing] = predict(api, name, [{"c": "new"}, {"c": None}])
    assert other == missing


@pytest.mark.both_databases
def test_the_text_of_an_unseen_value_is_content_and_becomes_a_value(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=table("a", "b"))
    sent = [{**row, "subject": f"user of {name}"} for row in examples("a", "zebra", "gnu", "b")]
    sent.append({"id": "e4", "x": {"c": "zebra"}, "y": None, "subject": f"user of {name}"})
    body = {"examples": sent}
    assert api.post(f"/v1/models/{name}/examples", json=body).json()["accepted"] == 5
    changed = {"examples": [{**sent[1], "x": {"c": "horse"}}]}
    refused(api.post(f"/v1/models/{name}/examples", json=changed), 409, "example_conflict")
    columns = [{"name": "new", "type": "number", "default": 1}, {"name": "c", "type": "category"}]
    columns[1] |= {"values": ["zebra", "a", "horse", "b"]}
    change = {"input": {"kind": "table", "columns": columns}}
    api.post(f"/v1/models/{name}/changes", json=change).raise_for_status()
    # the text of `gnu` is kept after the change as well; what is shown is the same content
    shown = [row["x"] for row in [*listed(api, name), api.get(f"/v1/models/{name}/examples/e4").json()]]
    assert shown == [{"new": 1.0, "c": value} for value in ("a", "zebra", "gnu", "b", "zebra")]
    again = {"examples": [{**row, "x": x} for row, x in zip(sent, shown, strict=True)]}
    assert api.post(f"/v1/models/{name}/examples", json=again).json()["duplicates"] == 5
    put = api.put(f"/v1/models/{name}/examples", json={"examples": [again["examples"][2]]})
    assert (put.json()["replaced"], put.json()["unchanged"]) == (0, 1)
    corrected = {**again["examples"][2], "x": {"new": 1.0, "c": "okapi"}}
    assert api.put(f"/v1/models/{name}/examples", json={"examples": [corrected]}).json()["replaced"] == 1
    assert export(api, name).column("c").to_pylist() == ["a", "zebra", "b", "okapi"]
    lines = api.post("/v1/subjects/export", json={"subject": f"user of {name}"}).text.splitlines()
    found = {(line["id"], line["in_force"]): line["x"]["c"] for line in map(json.loads, lines)}
    assert (found["e2", True], found["e2", False], found["e4", False]) == ("okapi", "gnu", "zebra")
    # a column that is dropped and restored, and a refused erasure, bring the texts back
    api.post(f"/v1/models/{name}/changes", json={"drop_columns": ["c"]}).raise_for_status()
    restored = {"add_columns": [{**columns[1], "values": ["okapi", "zebra", "a", "horse", "b"]}]}
    assert api.post(f"/v1/models/{name}/changes", json=restored).json()["restored"] == ["c"]
    erasure = api.post("/v1/erasures", json={"subject": f"user of {name}", "hold": True}).json()
    assert listed(api, name) == []
    api.post(f"/v1/erasures/{erasure['id']}/refuse", json={"reason": "another person"}).raise_for_status()
    assert sorted(row["x"]["c"] for row in listed(api, name)) == ["a", "b", "okapi", "zebra"]


def test_a_recorded_input_keeps_its_text_although_the_champion_has_other_columns(
    stack: Stack, api: httpx.Client
) -> None:
    xs = [{"c": value} for value in ("a", "b", "x", "y", "a", "b", "z", None)]
    name = trained(stack, api, xs, [0, 0, 1, 1, 0, 0, 1, 0], input=table("a", "b"))
    columns = [{"name": "new", "type": "number"}, *table("a", "b", "zebra")["columns"]]
    change = {"input": {"kind": "table", "columns": columns}}
    api.post(f"/v1/models/{name}/changes", json=change).raise_for_status()
    body = {"inputs": [{"c": "zebra"}, {"c": "gnu"}, {"c": "a"}], "ids": ["p0", "p1", "p2"], "record": True}
    api.post(f"/v1/models/{name}/predictions", json=body).raise_for_status()
    changed = {**body, "inputs": [body["inputs"][0], {"c": "okapi"}, body["inputs"][2]]}
    problem = refused(api.post(f"/v1/models/{name}/predictions", json=changed), 409, "example_conflict")
    assert location(problem) == ["ids", 1]
    waiting = api.get(f"/v1/models/{name}/examples?label=pending").json()["items"]
    assert [row["x"] for row in waiting] == [{"new": None, "c": value} for value in ("zebra", "gnu", "a")]
