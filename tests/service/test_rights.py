"""What people can ask for besides erasure: restriction, correction, access; letters, the register and statistics."""

from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import pytest

from core.erasure import requests
from core.tables.register import RecordKind
from tests.service.erasure_helpers import act, ask, model_with_person, open_erasure, show, somebody
from tests.service.expect import add, listed, refused, rows
from tests.stack import Stack

TABLE = {
    "kind": "table",
    "columns": [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["a", "b"]}],
}


def restrict(api: httpx.Client, person: str, **more: Any) -> dict[str, Any]:
    answer = api.post("/v1/restrictions", json={"subject": person, **more})
    assert answer.status_code == 201, answer.text
    restriction: dict[str, Any] = answer.json()
    return restriction


def lift(api: httpx.Client, id: str) -> httpx.Response:
    return api.post(f"/v1/restrictions/{id}/lift", json={"reason": "settled"})


def ids(api: httpx.Client, name: str) -> set[str]:
    return {row["id"] for row in listed(api, name)}


@pytest.mark.both_databases
def test_a_restriction_keeps_the_examples_out_of_training_until_it_is_lifted(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    stack.train(name)
    found = restrict(api, person, reason="contests the data", reference="A18-7")
    assert (found["state"], found["reason"], found["reference"]) == ("restricted", "contests the data", "A18-7")
    assert found["models"] == [{"model": name, "examples": 2}]
    assert ids(api, name) == {"e2", "e3", "e4", "e5"}
    assert [job["kind"] for job in api.get("/v1/jobs", params={"model": name}).json()["items"]] == ["adapt"]
    assert restrict(api, person)["id"] == found["id"]  # it is in effect already
    add(api, name, [{**row, "subject": person} for row in rows(1, "later")])
    requests.restrict_waiting(stack.database)  # as the tick does
    assert ids(api, name) == {"e2", "e3", "e4", "e5"}
    assert found["id"] in {one["id"] for one in api.get("/v1/restrictions").json()["items"]}
    refused(api.get(f"/v1/erasures/{found['id']}"), 404, "erasure_not_found")
    lifted = lift(api, found["id"]).json()
    assert (lifted["state"], lifted["reason"]) == ("lifted", None)
    assert [event["action"] for event in lifted["trail"]] == ["restricted", "restricted", "lifted"]
    assert len(ids(api, name)) == 7
    refused(lift(api, found["id"]), 409, "restriction_ended")
    assert api.get("/v1/receipts/verify").json()["flaws"] == []


@pytest.mark.parametrize("how", ["restriction", "held erasure"])
def test_analyses_that_may_name_the_person_end_with_the_use_of_the_examples(
    stack: Stack, api: httpx.Client, how: str
) -> None:
    person, name = somebody(), stack.model()
    add(api, name, [*rows(12), {"id": "p0", "subject": person, "x": [0.3, 0.4], "y": 1, "split": "holdout"}])
    stack.train(name)
    path = f"/v1/models/{name}/analyses"
    added = [{"id": "new", "x": [0.1, 0.2], "y": 0, "split": "holdout"}]  # needs no job
    analysis = api.post(path, json={"kind": "preview", "add": added}).raise_for_status().json()
    assert "p0" in [row["id"] for row in analysis["result"]["predictions"]]
    if how == "restriction":
        restrict(api, person)
    else:
        request = ask(api, person, hold=True)
    refused(api.get(f"{path}/{analysis['id']}"), 404, "analysis_not_found")
    if how == "held erasure":  # nothing of the person was deleted
        assert act(api, request["id"], "refuse", reason="no").status_code == 200
        assert "p0" in ids(api, name)


def test_a_refused_erasure_leaves_a_restriction_in_effect(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    restriction = restrict(api, person)
    erasure = ask(api, person, hold=True)
    assert erasure["models"][0]["examples"] == 2
    act(api, erasure["id"], "refuse", reason="no").raise_for_status()
    assert len(ids(api, name)) == 4
    lift(api, restriction["id"]).raise_for_status()
    assert len(ids(api, name)) == 6


def test_a_lifted_restriction_leaves_the_examples_to_an_open_erasure(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    restriction = restrict(api, person)
    erasure = ask(api, person, hold=True)
    lift(api, restriction["id"]).raise_for_status()
    assert len(ids(api, name)) == 4
    act(api, erasure["id"], "withdraw").raise_for_status()
    assert len(ids(api, name)) == 6


def test_a_restriction_of_one_identifier_outlives_the_erasure_request_for_two(stack: Stack, api: httpx.Client) -> None:
    one, two = somebody(), somebody()
    name = stack.model()
    subjects = [one, one, two, two]
    add(api, name, [{**row, "subject": subject} for row, subject in zip(rows(4), subjects, strict=True)])
    erasure = ask(api, one, subjects=[two], hold=True)
    restriction = restrict(api, two)
    assert ids(api, name) == set()
    act(api, erasure["id"], "refuse", reason="no").raise_for_status()
    assert ids(api, name) == {"e0", "e1"}
    lift(api, restriction["id"]).raise_for_status()
    assert ids(api, name) == {"e0", "e1", "e2", "e3"}


def test_the_end_of_an_erasure_ends_the_restriction(api: httpx.Client) -> None:
    person = somebody()
    restriction = restrict(api, person)
    erasure = ask(api, person, hold=True)
    assert act(api, erasure["id"], "approve").json()["state"] == "completed"  # no model has data
    found = api.get(f"/v1/restrictions/{restriction['id']}").json()
    assert (found["state"], found["trail"][-1]["by"]) == ("lifted", "amend")


def test_a_held_request_can_be_resumed_and_withdrawn(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    id = ask(api, person)["id"]
    held = act(api, id, "hold").json()
    assert (held["state"], held["models"][0]["state"]) == ("held", "held")
    refused(act(api, id, "hold"), 409, "erasure_not_open")
    assert act(api, id, "approve").json()["state"] == "received"
    withdrawn = act(api, id, "withdraw").json()
    assert (withdrawn["state"], withdrawn["completed_at"], withdrawn["receipt"]) == ("withdrawn", None, None)
    assert len(ids(api, name)) == 6
    refused(act(api, id, "withdraw"), 409, "erasure_ended")
    assert ask(api, person)["id"] != id


@pytest.mark.parametrize("restricted", [False, True], ids=["active", "restricted"])
def test_an_example_of_the_person_is_corrected(stack: Stack, api: httpx.Client, restricted: bool) -> None:
    person = somebody()
    name = stack.model(input=TABLE)
    examples = [{"id": f"e{i}", "x": {"age": i, "plan": "a"}, "y": i % 2, "split": "train"} for i in range(4)]
    add(api, name, [{**example, "subject": person} if i < 2 else example for i, example in enumerate(examples)])
    restriction = restrict(api, person) if restricted else None
    body = {"subject": person, "model": name, "id": "e1", "x": {"age": 41}, "reference": "C-1"}
    assert api.post("/v1/subjects/correct", json=body).json()["replaced"] == 1
    if restriction is not None:
        assert ids(api, name) == {"e2", "e3"}
        assert lift(api, restriction["id"]).json()["models"] == [{"model": name, "examples": 2}]
    found = {row["id"]: row for row in listed(api, name)}
    assert (found["e1"]["x"], found["e1"]["y"]) == ({"age": 41, "plan": "a"}, 1)
    assert len(found) == 4
    stranger = {**body, "subject": somebody()}
    refused(api.post("/v1/subjects/correct", json=stranger), 404, "example_not_found")
    refused(api.post("/v1/subjects/correct", json={**body, "id": "e2"}), 404, "example_not_found")
    refused(api.post("/v1/subjects/correct", json={**body, "x": {"age": "old"}}), 422, "example_invalid")
    refused(api.post("/v1/subjects/correct", json={**body, "x": None}), 422, "request_invalid")


def test_an_example_that_is_being_erased_is_not_corrected(stack: Stack, api: httpx.Client) -> None:
    """The job that erases it would not find the corrected one."""
    person = somebody()
    name = model_with_person(stack, api, person)
    restrict(api, person)
    body = {"subject": person, "model": name, "id": "e1", "x": [7, 7]}
    held = ask(api, person, hold=True)
    assert api.post("/v1/subjects/correct", json=body).json()["replaced"] == 1
    approved = act(api, held["id"], "approve").json()
    assert [part["examples"] for part in approved["models"]] == [2]
    refused(api.post("/v1/subjects/correct", json=body), 404, "example_not_found")


def test_the_requests_of_a_person_are_found_by_every_identifier(api: httpx.Client) -> None:
    person, alias = somebody(), somebody()
    done = ask(api, person, subjects=[alias], hold=True, reference="E-9")
    act(api, done["id"], "approve").raise_for_status()
    again = ask(api, person, hold=True)
    for name, expected in ((person, [again["id"], done["id"]]), (alias, [done["id"]])):
        found = api.post("/v1/subjects/requests", json={"subject": name}).json()["erasures"]
        assert [one["id"] for one in found] == expected
        assert (found[-1]["receipt"], found[-1]["reference"]) == (f"/v1/erasures/{done['id']}/receipt", "E-9")
    assert api.post("/v1/subjects/requests", json={"subject": somebody()}).json() == {
        "erasures": [],
        "restrictions": [],
    }
    act(api, again["id"], "withdraw").raise_for_status()


def test_the_report_shows_a_person_what_is_stored(stack: Stack, api: httpx.Client) -> None:
    person = f"<b>{somebody()}"
    name = stack.model(input=TABLE)
    example = {"id": "e0", "subject": person, "x": {"age": 39, "plan": None}, "y": 1, "source": "crm", "split": "train"}
    add(api, name, [example, {**example, "id": "of-nobody", "subject": None}])
    page = api.post("/v1/subjects/export", json={"subject": person}, headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert person not in page.text
    for words in (name, "39", "unknown", "crm", "used to train the model", "1 record in 1 model", "AMEND_CONTROLLER"):
        assert words in page.text
    assert "of-nobody" not in page.text
    nobody = api.post("/v1/subjects/export", json={"subject": somebody()}, headers={"Accept": "text/html"}).text
    assert "We have not found any records under this identifier." in nobody
    number = stack.train(name)
    api.get(f"/v1/models/{name}/versions/{number}/weights").raise_for_status()
    page = api.post("/v1/subjects/export", json={"subject": person}, headers={"Accept": "text/html"})
    assert f"the weights of version {number}, with the key “first admin”" in page.text


def test_letters_fit_the_state_of_the_request(stack: Stack, api: httpx.Client) -> None:
    id = open_erasure(stack, api, reference="R-<1>")["id"]
    place = f"/v1/erasures/{id}/letters"
    letter = api.get(f"{place}/confirmation").json()
    assert (letter["reference"], letter["acknowledgement"]["record"]["kind"]) == ("R-<1>", RecordKind.FILED)
    page = api.get(f"{place}/confirmation", headers={"Accept": "text/html"}).text
    assert letter["acknowledgement"]["head"]["root"] in page
    assert "R-<1>" not in page
    for kind in ("extension", "completion", "withdrawal", "restriction", "lifting"):
        refused(api.get(f"{place}/{kind}"), 404, "letter_not_found")
    act(api, id, "extend", reason="many requests").raise_for_status()
    assert "many requests" in " ".join(api.get(f"{place}/extension").json()["paragraphs"])
    act(api, id, "withdraw").raise_for_status()
    assert api.get(f"{place}/withdrawal").json()["title"] == "You have withdrawn your request for erasure"
    refused(api.get(f"{place}/extension"), 404, "letter_not_found")
    assert show(api, id)["extension"] is None


def test_the_register_is_a_table_that_spreadsheets_do_not_execute(stack: Stack, api: httpx.Client) -> None:
    reference = f"=HYPERLINK({somebody()})"
    id = ask(api, somebody(), hold=True, reference=reference, received_at="2020-01-31T12:00:00Z")["id"]
    text = api.get("/v1/erasures/register", params={"year": 2020}).text
    found = {row["request"]: row for row in csv.DictReader(io.StringIO(text))}
    assert (found[id]["reference"], found[id]["state"], found[id]["due"]) == (
        f"'{reference}",
        "held",
        "2020-02-29T12:00:00Z",
    )
    assert id not in api.get("/v1/erasures/register", params={"year": 2021}).text
    act(api, id, "refuse", reason="no").raise_for_status()
    years = {year["year"]: year for year in api.get("/v1/erasures/statistics").json()["years"]}
    assert years[2020]["refused"] >= 1
    assert years[2020]["late"] >= 1
    table = api.get("/v1/erasures/statistics", headers={"Accept": "text/csv"}).text
    assert [int(row["year"]) for row in csv.DictReader(io.StringIO(table))] == sorted(years, reverse=True)


def test_statistics_count_what_the_list_of_requests_has(api: httpx.Client, stack: Stack) -> None:
    before = {year["year"]: year for year in api.get("/v1/erasures/statistics").json()["years"]}.get(2019, {})
    made = [ask(api, somebody(), hold=True, received_at="2019-06-01T00:00:00Z") for _ in range(4)]
    for erasure, what in zip(made, ("approve", "refuse", "withdraw"), strict=False):
        act(api, erasure["id"], what, **({"reason": "no"} if what == "refuse" else {})).raise_for_status()
    after = next(year for year in api.get("/v1/erasures/statistics").json()["years"] if year["year"] == 2019)
    grown = {
        name: after[name] - before.get(name, 0) for name in ("received", "completed", "refused", "withdrawn", "open")
    }
    assert grown == {"received": 4, "completed": 1, "refused": 1, "withdrawn": 1, "open": 1}
    assert show(api, made[-1]["id"])["state"] == "held"
    act(api, made[-1]["id"], "withdraw").raise_for_status()
