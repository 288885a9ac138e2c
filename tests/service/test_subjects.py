"""Lookup and export of the examples of a subject, and the spelling of subjects."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest

from core.metadata import subjects_match
from tests.service.erasure_helpers import act, ask, model_with_person, somebody
from tests.service.expect import JSON, add, listed, refused, rows
from tests.stack import Stack


def looked_up(api: httpx.Client, person: str) -> dict[str, int]:
    answer = api.post("/v1/subjects/lookup", json={"subject": person}).raise_for_status().json()
    return {entry["model"]: entry["examples"] for entry in answer["models"]}


def exported(api: httpx.Client, person: str) -> list[dict[str, Any]]:
    answer = api.post("/v1/subjects/export", json={"subject": person}).raise_for_status()
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_person_is_found_in_every_model_with_all_their_examples(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    one, two = model_with_person(stack, api, person), model_with_person(stack, api, person, 1)
    assert looked_up(api, person) == {one: 2, two: 1}
    api.post(f"/v1/models/{one}/removals", json={"ids": ["e1"]}).raise_for_status()
    assert looked_up(api, person) == {one: 2, two: 1}  # it is out of force, and stored still
    lines = exported(api, person)
    assert {(line["model"], line["id"]): line["in_force"] for line in lines} == {
        (one, "e0"): True,
        (one, "e1"): False,
        (two, "e0"): True,
    }
    first = next(line for line in lines if line["model"] == one)
    [same] = [row for row in listed(api, one) if row["id"] == "e0"]
    assert {name: first[name] for name in same} == same
    assert looked_up(api, somebody()) == {}
    assert exported(api, somebody()) == []


def test_an_example_that_returned_into_force_counts_once(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    act(api, ask(api, person, hold=True)["id"], "withdraw").raise_for_status()
    act(api, ask(api, person, hold=True)["id"], "refuse", reason="a mistake").raise_for_status()
    assert looked_up(api, person) == {name: 2}
    assert [(line["id"], line["in_force"]) for line in exported(api, person)] == [("e0", True), ("e1", True)]
    body = {"subject": person, "model": name, "id": "e1", "x": [7, 7]}
    api.post("/v1/subjects/correct", json=body).raise_for_status()
    found = {(line["id"], tuple(line["x"]), line["in_force"]) for line in exported(api, person)}
    assert looked_up(api, person) == {name: 2}
    assert len(found) == 3  # what was stored before the correction is still stored
    assert ("e1", (7.0, 7.0), True) in found


def test_an_export_longer_than_a_page_is_complete(stack: Stack, api: httpx.Client) -> None:
    """Images: a page holds few of them."""
    person, name = somebody(), stack.model(input={"kind": "vector", "dim": 60_000})
    big = [{"id": f"e{i}", "subject": person, "x": [i] * 60_000, "y": 0} for i in range(4)]
    for example in big:
        add(api, name, [example])
    assert [(line["id"], line["x"][-1]) for line in exported(api, person)] == [(f"e{i}", i) for i in range(4)]


def test_a_key_sees_its_own_models_alone(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    one, _two = model_with_person(stack, api, person), model_with_person(stack, api, person)
    with stack.client(stack.key("erase", models=[one])) as holder:
        assert looked_up(holder, person) == {one: 2}
        assert {line["model"] for line in exported(holder, person)} == {one}
        # the report for the person says that it covers all models, and lists requests
        page = holder.post("/v1/subjects/export", json={"subject": person}, headers={"Accept": "text/html"})
        refused(page, 403, "key_limited")


@pytest.mark.parametrize("body", ["{}", '{"subject": ""}', '{"subject": "\\u0085"}', '{"subject": 7}', "[]"])
@pytest.mark.parametrize("what", ["lookup", "export"])
def test_a_bad_request_is_refused(api: httpx.Client, what: str, body: str) -> None:
    refused(api.post(f"/v1/subjects/{what}", content=body, headers=JSON), 422, "request_invalid")


def test_the_person_is_not_in_the_log(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    looked_up(api, person)
    exported(api, person)
    log = stack.log.read_text()
    assert "/v1/subjects/lookup" in log
    assert person not in log


def test_spelling_matters_unless_the_setting_says_otherwise(stack: Stack, api: httpx.Client, small: Stack) -> None:
    plain = f"Ann Stra\u00dfe {uuid.uuid4().hex}"
    other = plain.replace("Ann Stra\u00dfe", "\uff21NN STRASSE")
    name = model_with_person(stack, api, plain)
    assert (looked_up(api, plain), looked_up(api, other)) == ({name: 2}, {})
    with small.client() as caseless:
        name = small.model()
        add(caseless, name, [{**row, "subject": person} for row, person in zip(rows(2), (plain, other), strict=True)])
        assert looked_up(caseless, other) == {name: 2}
        answer = caseless.post(f"/v1/models/{name}/removals", json={"subjects": [plain.upper()]})
        assert answer.json()["removed"] == 2
        assert ask(caseless, plain.lower(), hold=False)["models"][0]["examples"] == 2


def test_the_setting_decides_whether_requests_are_held(small: Stack) -> None:
    with small.client() as api:
        erasure = ask(api, somebody())
        assert erasure["state"] == "held"
        assert act(api, erasure["id"], "approve").json()["state"] == "completed"
        assert ask(api, somebody(), hold=False)["state"] == "unmatched"


def test_the_comparison_of_subjects_is_fixed_once_subjects_are_stored(
    stack: Stack, small: Stack, api: httpx.Client
) -> None:
    model_with_person(stack, api, somebody())
    with small.client() as caseless:
        add(caseless, small.model(), [{**rows(1)[0], "subject": somebody()}])
    for deployment, kept in ((stack, False), (small, True)):
        with deployment.database.write() as session:
            assert subjects_match(session, kept)
            assert not subjects_match(session, not kept)


def test_many_people_are_filed_at_once_each_with_a_request_of_their_own(stack: Stack, api: httpx.Client) -> None:
    one, two = somebody(), somebody()
    name = model_with_person(stack, api, one)
    add(api, name, [{**row, "subject": two} for row in rows(1, "more")])
    people = [two, one, somebody(), one]
    answer = file(api, [{"subject": person} for person in people])
    assert [len(item["models"]) for item in answer] == [1, 1, 0, 1]
    assert [item["state"] for item in answer] == ["received", "received", "unmatched", "received"]
    ids = [item["id"] for item in answer]
    assert (ids[1] == ids[3], len(set(ids))) == (True, 3)
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5"]
    # what is open is joined, whoever asks
    assert [item["id"] for item in file(api, [{"subject": one}])] == [ids[1]]


def file(api: httpx.Client, requests: list[dict[str, Any]], **headers: str) -> list[dict[str, Any]]:
    answer = api.post("/v1/erasures/batch", json={"requests": requests}, headers=headers)
    assert answer.status_code == 202, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_a_batch_of_erasures_is_stored_once_and_completely_or_not_at_all(stack: Stack, api: httpx.Client) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    people = [{"subject": somebody()}, {"subject": somebody(), "hold": True}]
    first, second = (file(api, people, **key) for _ in range(2))
    assert [item["id"] for item in first] == [item["id"] for item in second]
    person = somebody()
    name = model_with_person(stack, api, person)
    bad = {"requests": [{"subject": person}, {"subject": "a", "received_at": "2999-01-01T00:00:00Z"}]}
    problem = refused(api.post("/v1/erasures/batch", json=bad), 422, "request_invalid")
    assert problem["errors"][0]["loc"][-3:] == ["requests", 1, "received_at"]
    assert len(listed(api, name)) == 6
    refused(api.post("/v1/erasures/batch", json={"requests": []}), 422, "request_invalid")
    many = {"requests": [{"subject": f"p{i}"} for i in range(1001)]}
    refused(api.post("/v1/erasures/batch", json=many), 413, "batch_too_large")
