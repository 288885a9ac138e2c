"""Changes of columns and classes over REST: refusals, and how existing examples are read afterwards."""

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
    change(api, name, input=table({**land, "default": "fr"}, any_plan), drop_columns=["age"]).raise_for_status()
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
def test_a_batch_parsed_before_a_schema_change_is_parsed_again(
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
    given = table({**years, "was": "age"}, {**AGE, "name": "n", "default": 2})
    change(api, name, input=given, drop_columns=["plan"]).raise_for_status()
    place_of_a = f"/v1/models/{name}/examples/a"
    refused(api.put(place_of_a, json={"x": {"age": 1, "plan": "free"}, "y": 1}), 422, "example_invalid")
    same = api.put(place_of_a, json={"x": {"years": 30, "n": 2}, "y": 1}).json()
    assert (same["replaced"], same["unchanged"], same["position"]) == (0, 1, 3)
    corrected = api.put(place_of_a, json={"x": {"years": 31, "n": 2}, "y": 1}).json()
    assert (corrected["replaced"], corrected["position"]) == (1, 4)
    assert [example["x"] for example in listed(api, name)] == [{"years": None, "n": 2.0}, {"years": 31.0, "n": 2.0}]


def test_boolean_and_date_columns_can_be_added_renamed_and_dropped(stack: Stack, api: httpx.Client) -> None:
    member, since = {"name": "member", "type": "boolean"}, {"name": "since", "type": "date"}
    name = stack.model(input=table(AGE, member, since))
    old = {"age": 30.0, "member": True, "since": "2024-03-05"}
    add(api, name, [{"id": "a", "x": old, "y": 1}])
    paying, left = {"name": "paying", "type": "boolean"}, {"name": "left", "type": "date"}
    given = table(
        {**since, "was": "since"}, left, {**member, "name": "joined", "was": "member"}, {**paying, "default": False}
    )
    change(api, name, input=given, drop_columns=["age"]).raise_for_status()
    assert listed(api, name)[0]["x"] == {"since": "2024-03-05", "left": None, "joined": True, "paying": False}
    new = {"since": None, "left": "2025-01-01T10:30:00Z", "joined": False, "paying": None}
    add(api, name, [{"id": "b", "x": new, "y": 0}])
    assert listed(api, name)[1]["x"] == new
    change(api, name, drop_columns=["since", "joined"]).raise_for_status()
    assert [row["x"] for row in listed(api, name)] == [
        {"left": None, "paying": False},
        {"left": new["left"], "paying": None},
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
        ([{**AGE, "type": "category", "values": ["x"]}, PLAN], [0, "type"], "The type was number"),
        ([AGE, {**PLAN, "values": ["free"]}], [1, "values"], "The value 'paid' is missing"),
        (
            [AGE, {**PLAN, "values": ["free"], "merge": {"gold": "free"}}],
            [1, "merge", "gold"],
            "Only a value that the change drops",
        ),
        (
            [AGE, {**PLAN, "values": ["free"], "merge": {"paid": "x"}}],
            [1, "merge", "paid"],
            "'x' is not one of the new values",
        ),
        ([AGE, PLAN, {**AGE, "name": "b", "was": "old"}], [2, "was"], "no column 'old'"),
        ([AGE, PLAN, {"name": "b", "type": "number", "was": "age"}], [2, "was"], "Another column"),
        ([{**AGE, "default": 1}, PLAN], [0, "default"], "Only a new column"),
        ([AGE, PLAN, {**PLAN, "name": "p", "default": "gold"}], [2, "default"], "one of the column's values"),
    ],
)
def test_a_change_that_existing_rows_cannot_be_converted_to_is_refused(
    stack: Stack, api: httpx.Client, columns: list[Any], where: list[Any], says: str
) -> None:
    name = new_table(stack, api)
    problem = refused(change(api, name, input=table(*columns)), 422, "input_incompatible")
    assert location(problem) == ["input", "columns", *where]
    assert says in problem["detail"]
    assert api.get(f"/v1/models/{name}").json()["head"] == 2


def test_invalid_changes_of_columns_are_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    refused(change(api, name, input=table(AGE)), 422, "input_incompatible")
    refused(change(api, name, input={"kind": "vector", "dim": 3}), 422)
    # what a change says of rows from before is nothing that a new model could have
    body = {"name": f"{name}-2", "input": table({**AGE, "was": "x"}), "target": {"kind": "binary"}}
    refused(api.post("/v1/models", json=body), 422)


def test_classes_can_be_added_merged_and_dropped(stack: Stack, api: httpx.Client) -> None:
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


def test_a_change_of_columns_is_reverted_unless_values_were_deleted(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    years = {"name": "years", "type": "number"}
    change(api, name, input=table(PLAN, {**years, "was": "age"}, {"name": "n", "type": "number"})).raise_for_status()
    assert change(api, name, revert=3).json()["position"] == 4
    assert api.get(f"/v1/models/{name}").json()["input"] == table(AGE, PLAN)
    assert listed(api, name)[0]["x"] == {"age": 30.0, "plan": "free"}
    change(api, name, drop_columns=["plan"]).raise_for_status()
    reverted = change(api, name, revert=5).json()
    assert (reverted["added"], reverted["dropped"], reverted["restored"]) == (["plan"], [], ["plan"])
    assert listed(api, name)[0]["x"] == {"age": 30.0, "plan": "free"}
    change(api, name, input=table(AGE, {**PLAN, "values": ["any"], "merge": {"free": "any", "paid": "any"}}))
    assert "altered" in refused(change(api, name, revert=7), 422, "change_irreversible")["detail"]


def test_a_refused_request_to_forget_puts_rows_back_as_they_are_now(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=table(AGE))
    person = f"person of {name}"
    add(api, name, [{"id": "a", "subject": person, "x": {"age": 30}, "y": 1}])
    erasure = api.post("/v1/erasures", json={"subject": person, "hold": True}).raise_for_status().json()
    change(api, name, input=table(PLAN, {"name": "years", "type": "number", "was": "age"})).raise_for_status()
    api.post(f"/v1/erasures/{erasure['id']}/refuse", json={"reason": "a contract"}).raise_for_status()
    assert listed(api, name)[0]["x"] == {"plan": None, "years": 30.0}


def xs(api: httpx.Client, name: str) -> list[Any]:
    return [example["x"] for example in listed(api, name)]


def test_columns_are_added_and_dropped_by_name(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    visits = {"name": "visits", "type": "number"}
    answer = change(api, name, add_columns=[{**visits, "default": 2}], drop_columns=["age"]).json()
    assert answer == {"position": 3, "job": None, "added": ["visits"], "dropped": ["age"]}
    assert api.get(f"/v1/models/{name}").json()["input"] == table(PLAN, visits)
    assert xs(api, name) == [{"plan": "free", "visits": 2.0}, {"plan": None, "visits": 2.0}]


@pytest.mark.both_databases
def test_a_dropped_column_returns_with_its_values(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    change(api, name, drop_columns=["age"]).raise_for_status()
    add(api, name, [{"id": "c", "x": {"plan": "paid"}, "y": 1}])
    # changes in between, also of the values of the dropped column, do not matter
    years = {**PLAN, "name": "tariff", "was": "plan", "values": ["paid", "free", "gold"]}
    change(api, name, input=table(years)).raise_for_status()
    add(api, name, [{"id": "d", "x": {"tariff": "gold"}, "y": 1}])
    answer = change(api, name, add_columns=[{**AGE, "default": 7}]).json()
    assert (answer["added"], answer["dropped"], answer["restored"]) == (["age"], [], ["age"])
    add(api, name, [{"id": "e", "x": {"tariff": "gold", "age": 8}, "y": 1}])
    expected = [
        {"tariff": "free", "age": 30.0},
        {"tariff": None, "age": None},
        {"tariff": "paid", "age": 7.0},  # it arrived while the column was dropped
        {"tariff": "gold", "age": 7.0},
        {"tariff": "gold", "age": 8.0},
    ]
    assert xs(api, name) == expected
    assert api.get(f"/v1/models/{name}/examples/a").json()["x"] == expected[0]
    # once more, this time with the complete input
    change(api, name, drop_columns=["age"]).raise_for_status()
    add(api, name, [{"id": "f", "x": {"tariff": "free"}, "y": 0}])
    tariff = {"name": "tariff", "type": "category", "values": ["paid", "free", "gold"], "other": False}
    assert change(api, name, input=table(AGE, tariff)).json()["restored"] == ["age"]
    expected = [*expected, {"tariff": "free", "age": None}]
    assert xs(api, name) == expected
    # a renamed column takes its values along: nothing is restored a second time
    change(api, name, input=table({**AGE, "name": "years", "was": "age"}, tariff)).raise_for_status()
    assert "restored" not in change(api, name, add_columns=[AGE]).json()
    assert [x["age"] for x in xs(api, name)] == [None] * 6
    assert [x["years"] for x in xs(api, name)] == [x["age"] for x in expected]


def test_a_dropped_category_returns_with_other_values(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    change(api, name, drop_columns=["plan"]).raise_for_status()
    more = {**PLAN, "values": ["gold", "paid", "free"], "default": "gold"}
    problem = refused(change(api, name, add_columns=[{**PLAN, "values": ["gold"]}]), 422, "input_incompatible")
    assert "'free' is missing" in problem["detail"]
    add(api, name, [{"id": "c", "x": {"age": 1}, "y": 1}])
    assert change(api, name, add_columns=[more]).json()["restored"] == ["plan"]
    assert [x["plan"] for x in xs(api, name)] == ["free", None, "gold"]
    # the values change while it is back, and it is dropped and restored again
    merged = {**PLAN, "values": ["gold", "basic"], "merge": {"free": "basic", "paid": "basic"}}
    change(api, name, input=table(AGE, merged)).raise_for_status()
    change(api, name, drop_columns=["plan"]).raise_for_status()
    change(api, name, add_columns=[{**PLAN, "values": ["basic", "gold"]}]).raise_for_status()
    assert [x["plan"] for x in xs(api, name)] == ["basic", None, "gold"]


def test_an_input_that_omits_columns_is_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=table(AGE, PLAN, {"name": "n", "type": "number"}))
    visits = {"name": "visits", "type": "number"}
    problem = refused(change(api, name, input=table(visits)), 422, "columns_missing")
    assert "'age', 'plan', 'n'" in problem["detail"]
    assert [error["msg"] for error in problem["errors"]] == [f"{c!r} is missing." for c in ("age", "plan", "n")]
    renamed = table({**AGE, "name": "years", "was": "age"}, visits)
    problem = refused(change(api, name, input=renamed, drop_columns=["n"]), 422, "columns_missing")
    assert [error["msg"] for error in problem["errors"]] == ["'plan' is missing."]
    answer = change(api, name, input=renamed, drop_columns=["n", "plan"]).json()
    assert (answer["added"], answer["dropped"]) == (["visits"], ["plan", "n"])


@pytest.mark.parametrize(
    ("body", "code", "where"),
    [
        ({"drop_columns": ["none"]}, "column_unknown", ["drop_columns", 0]),
        ({"drop_columns": ["age", "plan"]}, "input_incompatible", ["drop_columns"]),
        ({"add_columns": [AGE]}, "column_exists", ["add_columns", 0, "name"]),
        ({"add_columns": [{**AGE, "name": "b", "was": "age"}]}, "input_incompatible", ["add_columns", 0, "was"]),
        ({"input": table(AGE, PLAN), "drop_columns": ["plan"]}, "input_incompatible", ["drop_columns", 0]),
        ({"add_columns": [{**AGE, "name": "y"}]}, "request_invalid", None),
        ({"add_columns": [{**AGE, "name": "b"}, {**AGE, "name": "b"}]}, "request_invalid", None),
        ({"add_columns": []}, "request_invalid", None),
        ({"drop_columns": []}, "request_invalid", None),
        ({"drop_columns": ["age"], "revert": 1}, "request_invalid", None),
        ({"input": table(AGE, PLAN), "add_columns": [{**AGE, "name": "b"}]}, "request_invalid", None),
    ],
)
def test_invalid_lists_of_columns_are_refused(
    stack: Stack, api: httpx.Client, body: dict[str, Any], code: str, where: list[Any] | None
) -> None:
    problem = refused(change(api, new_table(stack, api), **body), 422, code)
    assert where is None or location(problem) == where


def test_a_dropped_column_does_not_return_with_another_type(stack: Stack, api: httpx.Client) -> None:
    name = new_table(stack, api)
    change(api, name, drop_columns=["age"]).raise_for_status()
    problem = refused(change(api, name, add_columns=[{**AGE, "type": "boolean"}]), 422, "input_incompatible")
    assert "has the type number" in problem["detail"]


def test_only_tables_have_columns_to_drop(stack: Stack, api: httpx.Client) -> None:
    refused(change(api, stack.model(), drop_columns=["a"]), 422, "input_incompatible")
