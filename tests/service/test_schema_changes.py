"""Changes of columns and classes through the front door: what is refused, and how examples are read afterwards."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from core import ledger
from core.models import catalog
from core.tables.ledger import ChangeKind
from tests.service.expect import add, listed, location, refused
from tests.stack import Stack

AGE: dict[str, Any] = {"name": "age", "type": "number"}
PLAN: dict[str, Any] = {"name": "plan", "type": "category", "values": ["free", "paid"], "other": False}


def table(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "table", "columns": list(columns)}


def change(api: httpx.Client, name: str, **parts: Any) -> httpx.Response:
    return api.post(f"/v1/models/{name}/changes", json=parts)


def new_table(stack: Stack, api: httpx.Client, **spec: Any) -> str:
    name = stack.model(input=table(AGE, PLAN), **spec)
    examples = [
        {"id": "a", "x": {"age": 30, "plan": "free"}, "y": 1},
        {"id": "b", "x": {"age": None, "plan": None}, "y": 0},
    ]
    add(api, name, examples)
    return name


def test_examples_are_listed_and_read_as_the_columns_are_now(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    visits, plan = {"name": "visits", "type": "number"}, {**PLAN, "values": ["free", "trial", "paid"]}
    years = {"name": "years", "type": "number"}
    given = table({**visits, "default": 2}, plan, {**years, "was": "age"})
    answer = change(api, name, input=given).json()
    assert answer == {"position": 3, "job": None, "added": ["visits"], "dropped": []}
    # what a change says of rows from before is no part of the model
    assert api.get(f"/v1/models/{name}").json()["input"] == table(visits, plan, years)
    new = {"visits": 7.0, "plan": "trial", "years": 5.0}
    assert add(api, name, [{"id": "c", "x": new, "y": 1}])["accepted"] == 1
    assert [example["x"] for example in listed(api, name)] == [
        {"visits": 2.0, "plan": "free", "years": 30.0},
        {"visits": 2.0, "plan": None, "years": None},
        new,
    ]
    assert api.get(f"/v1/models/{name}/examples/a").json()["x"]["years"] == 30
    # the same content again, in the words of today
    again = {"id": "a", "x": {"visits": 2, "plan": "free", "years": 30}, "y": 1}
    assert add(api, name, [again])["duplicates"] == 1
    refused(api.post(f"/v1/models/{name}/examples", json={"examples": [{"id": "d", "x": {"age": 1}, "y": 1}]}), 422)
    assert api.get(f"/v1/models/{name}/changes").json()["items"][0]["value"] == given


def test_several_changes_of_columns_follow_each_other(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    any_plan = {"name": "plan", "type": "category", "values": ["any"], "other": True}
    change(api, name, input=table(AGE, {**any_plan, "merge": {"free": "any", "paid": "any"}})).raise_for_status()
    add(api, name, [{"id": "c", "x": {"age": 1, "plan": "any"}, "y": 1}])
    land = {"name": "land", "type": "category", "values": ["de", "fr"], "other": True}
    change(api, name, input=table({**land, "default": "fr"}, any_plan)).raise_for_status()
    assert [example["x"] for example in listed(api, name)] == [
        {"land": "fr", "plan": "any"},
        {"land": "fr", "plan": None},
        {"land": "fr", "plan": "any"},
    ]


def change_elsewhere(stack: Stack, name: str, value: Any) -> None:
    """Change the input as another process of the service would, of which this one learns a moment later."""
    with stack.database.write() as session:
        ledger.change_spec(session, catalog.find(session, name, None, lock=True), ChangeKind.INPUT, value)


@pytest.mark.parametrize("keyed", [False, True], ids=["alone", "idempotent"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_batch_that_was_read_before_a_change_is_read_again(
    stack: Stack, api: httpx.Client, method: str, keyed: bool
) -> None:
    name = new_table(stack, api)  # from now on the service knows it for a second
    other_order = {**PLAN, "values": ["paid", "trial", "free"]}
    change_elsewhere(stack, name, table(AGE, other_order))
    # fine by either, but another number
    example = {"id": "a" if method == "PUT" else "c", "x": {"age": 31.0, "plan": "paid"}, "y": 1}
    headers = {"Idempotency-Key": uuid.uuid4().hex} if keyed else {}
    send = {"json": {"examples": [example]}, "headers": headers}
    answer = api.request(method, f"/v1/models/{name}/examples", **send)
    assert answer.is_success, answer.text
    assert api.get(f"/v1/models/{name}/examples/{example['id']}").json()["x"] == example["x"]
    # fine by the new columns alone, and by the old ones alone
    change_elsewhere(stack, name, table({**AGE, "name": "years", "was": "age"}))
    refused(api.request(method, f"/v1/models/{name}/examples", json={"examples": [example]}), 422, "example_invalid")
    change_elsewhere(stack, name, table({**AGE, "was": "years"}, {**PLAN, "default": "free"}))
    again = {**example, "x": {"age": 32.0, "plan": "free"}, "id": "a" if method == "PUT" else "d"}
    assert api.request(method, f"/v1/models/{name}/examples", json={"examples": [again]}).is_success


def test_an_example_from_before_is_corrected_in_the_columns_of_today(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    years = {"name": "years", "type": "number"}
    change(api, name, input=table({**years, "was": "age"}, {**AGE, "name": "n", "default": 2})).raise_for_status()
    place_of_a = f"/v1/models/{name}/examples/a"
    refused(api.put(place_of_a, json={"x": {"age": 1, "plan": "free"}, "y": 1}), 422, "example_invalid")
    same = api.put(place_of_a, json={"x": {"years": 30, "n": 2}, "y": 1}).json()
    assert (same["replaced"], same["unchanged"], same["position"]) == (0, 1, 3)
    corrected = api.put(place_of_a, json={"x": {"years": 31, "n": 2}, "y": 1}).json()
    assert (corrected["replaced"], corrected["position"]) == (1, 4)
    assert [example["x"] for example in listed(api, name)] == [{"years": None, "n": 2.0}, {"years": 31.0, "n": 2.0}]


def test_booleans_and_dates_come_are_renamed_and_go(stack: Stack, api: httpx.Client) -> None:
    member, since = {"name": "member", "type": "boolean"}, {"name": "since", "type": "date"}
    name = stack.model(input=table(AGE, member, since))
    old = {"age": 30.0, "member": True, "since": "2024-03-05"}
    add(api, name, [{"id": "a", "x": old, "y": 1}])
    paying, left = {"name": "paying", "type": "boolean"}, {"name": "left", "type": "date"}
    given = table(
        {**since, "was": "since"}, left, {**member, "name": "joined", "was": "member"}, {**paying, "default": False}
    )
    change(api, name, input=given).raise_for_status()
    assert listed(api, name)[0]["x"] == {"since": "2024-03-05", "left": None, "joined": True, "paying": False}
    new = {"since": None, "left": "2025-01-01T10:30:00Z", "joined": False, "paying": None}
    add(api, name, [{"id": "b", "x": new, "y": 0}])
    assert listed(api, name)[1]["x"] == new
    change(api, name, input=table(paying, left)).raise_for_status()
    assert [row["x"] for row in listed(api, name)] == [
        {"paying": False, "left": None},
        {"paying": None, "left": new["left"]},
    ]
    for bad in ({**AGE, "name": "left", "was": "left"}, {**since, "default": "2024-01-01"}):
        refused(change(api, name, input=table(bad)), 422)


def test_a_person_gets_their_examples_as_the_columns_are_now(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=table(AGE))
    person = f"person of {name}"
    add(api, name, [{"id": "a", "subject": person, "x": {"age": 30}, "y": 1}])
    change(api, name, input=table({"name": "years", "type": "number", "was": "age"})).raise_for_status()
    assert api.post("/v1/subjects/export", json={"subject": person}).json()["x"] == {"years": 30.0}


@pytest.mark.parametrize(
    ("columns", "where", "says"),
    [
        ([{**AGE, "type": "category", "values": ["x"]}, PLAN], [0, "type"], "was a number"),
        ([AGE, {**PLAN, "values": ["free"]}], [1, "values"], "'paid' is gone"),
        (
            [AGE, {**PLAN, "values": ["free"], "merge": {"gold": "free"}}],
            [1, "merge", "gold"],
            "a value that there was",
        ),
        ([AGE, {**PLAN, "values": ["free"], "merge": {"paid": "x"}}], [1, "merge", "paid"], "none of the values"),
        ([{**AGE, "was": "old"}], [0, "was"], "no column 'old'"),
        ([AGE, {"name": "b", "type": "number", "was": "age"}], [1, "was"], "another column"),
        ([{**AGE, "default": 1}], [0, "default"], "not new"),
        ([AGE, {**PLAN, "name": "p", "default": "gold"}], [1, "default"], "one of the column's values"),
    ],
)
def test_a_change_that_old_rows_cannot_follow_is_refused(
    stack: Stack, api: httpx.Client, columns: list[Any], where: list[Any], says: str
) -> None:
    name = new_table(stack, api)
    problem = refused(change(api, name, input=table(*columns)), 422, "input_incompatible")
    assert location(problem) == ["input", "columns", *where]
    assert says in problem["detail"]
    assert api.get(f"/v1/models/{name}").json()["head"] == 2


def test_what_is_no_change_of_columns_is_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    refused(change(api, name, input=table(AGE)), 422, "input_incompatible")
    refused(change(api, name, input={"kind": "vector", "dim": 3}), 422)
    # what a change says of rows from before is nothing that a new model could have
    body = {"name": f"{name}-2", "input": table({**AGE, "was": "x"}), "target": {"kind": "binary"}}
    refused(api.post("/v1/models", json=body), 422)


def test_classes_come_merge_and_go(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    classes = {"kind": "classes", "values": ["no", "yes", "perhaps"]}
    problem = refused(change(api, name, target=classes), 422, "target_incompatible")
    assert location(problem) == ["target", "values"]
    change(api, name, target={**classes, "merge": {"0": "no", "1": "yes"}}).raise_for_status()
    assert api.get(f"/v1/models/{name}").json()["target"] == classes
    add(api, name, [{"id": "c", "x": {"age": 1, "plan": None}, "y": "perhaps"}])
    assert [example["y"] for example in listed(api, name)] == ["yes", "no", "perhaps"]
    less = {"kind": "classes", "values": ["no", "yes"]}
    assert location(refused(change(api, name, target=less), 422, "class_in_use")) == ["target", "values"]
    api.post(f"/v1/models/{name}/removals", json={"ids": ["c"]}).raise_for_status()
    change(api, name, target=less).raise_for_status()
    change(api, name, target={"kind": "classes", "values": ["yes", "no"]}).raise_for_status()
    assert [example["y"] for example in listed(api, name)] == ["yes", "no"]
    refused(change(api, name, target={"kind": "number"}), 422, "target_incompatible")


def test_a_change_of_columns_is_reverted_unless_something_is_gone(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    years = {"name": "years", "type": "number"}
    change(api, name, input=table(PLAN, {**years, "was": "age"}, {"name": "n", "type": "number"})).raise_for_status()
    assert change(api, name, revert=3).json()["position"] == 4
    assert api.get(f"/v1/models/{name}").json()["input"] == table(AGE, PLAN)
    assert listed(api, name)[0]["x"] == {"age": 30.0, "plan": "free"}
    change(api, name, input=table(AGE)).raise_for_status()
    assert "dropped" in refused(change(api, name, revert=5), 422, "change_irreversible")["detail"]


def test_a_refused_request_to_forget_puts_rows_back_as_they_are_now(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=table(AGE))
    person = f"person of {name}"
    add(api, name, [{"id": "a", "subject": person, "x": {"age": 30}, "y": 1}])
    erasure = api.post("/v1/erasures", json={"subject": person, "hold": True}).raise_for_status().json()
    change(api, name, input=table(PLAN, {"name": "years", "type": "number", "was": "age"})).raise_for_status()
    api.post(f"/v1/erasures/{erasure['id']}/refuse", json={"reason": "a contract"}).raise_for_status()
    assert listed(api, name)[0]["x"] == {"plan": None, "years": 30.0}
