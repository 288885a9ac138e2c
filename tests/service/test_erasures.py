"""Erasure requests: receive, join, refuse, extend, retry. No worker runs here, so none is completed."""

from __future__ import annotations

import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from core.erasure import queries
from core.erasure.deleted_models import complete_erasures
from core.erasure.due_dates import months_after
from core.erasure.identifiers import subjects_of, token_of
from core.ledger.subject_hashes import subject_hash
from core.tables.jobs import JobKind
from core.tables.ledger import Example
from core.versions.store import Store
from tests.service.erasure_helpers import act, ask, fail_erasure, model_with_person, open_erasure, show, somebody
from tests.service.expect import JSON, add, listed, location, paged, refused, rows
from tests.stack import Stack

LONG_AGO = "2020-01-31T12:00:00Z"


def as_shown(erasure: dict[str, Any]) -> dict[str, Any]:
    """A request without what only the response to the caller who filed it contains."""
    return {**erasure, "acknowledgement": None, "searched": None, "near_matches": None}


def test_an_erasure_is_received_and_can_be_looked_up(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    erasure = ask(api, person, reason="asked by mail", received_at=LONG_AGO)
    part = {"model": name, "examples": 2, "state": "received", "version": None, "bound": None, "method": None}
    assert erasure == {
        "id": erasure["id"],
        "state": "received",
        "received_at": LONG_AGO,
        "due_at": "2020-02-29T12:00:00Z",
        "overdue": True,
        "completed_at": None,
        "late": False,
        "repeats": None,
        "reason": "asked by mail",
        "reference": None,
        "extension": None,
        "refusal": None,
        "trail": [{"action": "filed", **{name: erasure["trail"][0][name] for name in ("by", "name", "at")}}],
        "models": [{**part, "error": None}],
        "receipt": None,
        "tokens": [token_of(subject_hash(person, stack.settings.secret), stack.settings.secret)],
        "searched": [{"subject": person, "examples": 2}],
        "near_matches": [],
        "acknowledgement": erasure["acknowledgement"],
    }
    assert show(api, erasure["id"]) == as_shown(erasure)


def test_received_at_defaults_to_now(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    received = datetime.fromisoformat(erasure["received_at"])
    assert abs(datetime.now(UTC) - received) < timedelta(minutes=1)
    assert datetime.fromisoformat(erasure["due_at"]) == months_after(received, 1)
    assert erasure["overdue"] is False


def test_times_are_returned_in_utc(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api, received_at="2020-03-31T23:30:00-05:00")
    assert (erasure["received_at"], erasure["due_at"][:10]) == ("2020-04-01T04:30:00Z", "2020-05-01")


def test_the_examples_are_out_of_every_listing_at_once_and_predictions_go_on(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name, other = model_with_person(stack, api, person), model_with_person(stack, api, person, 1)
    stack.train(name)
    erasure = ask(api, person)
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5"]
    assert [row["id"] for row in listed(api, other)] == ["e1", "e2", "e3", "e4", "e5"]
    refused(api.get(f"/v1/models/{name}/examples/e0"), 404, "example_not_found")
    model = api.get(f"/v1/models/{name}").json()
    assert (model["counts"], model["head"]) == (
        {"train": 4, "holdout": 0, "removed": 2, "quarantined": 0, "unlabelled": 0},
        8,
    )
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [[1, 2]]})
    assert answer.status_code == 200, answer.text
    assert {part["model"]: part["examples"] for part in erasure["models"]} == {name: 2, other: 1}
    for model_name in (name, other):
        [job] = api.get("/v1/jobs", params={"model": model_name, "kind": JobKind.ERASE}).json()["items"]
        assert job["state"] == "queued"


def test_a_second_request_joins_the_first_and_includes_new_examples(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    first = ask(api, person)
    add(api, name, [{**row, "subject": person} for row in rows(3, "later")])
    second = ask(api, person)
    assert (second["id"], second["models"][0]["examples"]) == (first["id"], 5)
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5"]
    assert len(api.get("/v1/jobs", params={"model": name, "kind": "erase"}).json()["items"]) == 1


def test_first_requests_at_the_same_time_are_one_erasure(stack: Stack, api: httpx.Client) -> None:
    for person in (somebody() for _ in range(3)):
        name = model_with_person(stack, api, person)
        with ThreadPoolExecutor(8) as pool:
            ids = {erasure["id"] for erasure in pool.map(lambda _, p=person: ask(api, p), range(8))}
        assert len(ids) == 1
        assert api.get(f"/v1/models/{name}").json()["counts"]["removed"] == 2


def test_a_request_sent_twice_with_a_key_is_one(stack: Stack, api: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"subject": somebody()}
    first = api.post("/v1/erasures", json=body, headers=headers)
    act(api, first.json()["id"], "refuse", reason="unknown").raise_for_status()  # a new request would be another one
    second = api.post("/v1/erasures", json=body, headers=headers)
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert ask(api, body["subject"])["id"] != first.json()["id"]
    other = api.post("/v1/erasures", json={"subject": somebody()}, headers=headers)
    refused(other, 409, "idempotency_conflict")


BAD = {
    "nobody": "{}",
    "no identifiers": '{"subjects": []}',
    "empty alias": '{"subject": "a", "subjects": [""]}',
    "control character in an alias": '{"subject": "a", "subjects": ["\\u0085"]}',
    "too many aliases": '{"subjects": [' + ", ".join(f'"{i}"' for i in range(21)) + "]}",
    "empty": '{"subject": ""}',
    "long": '{"subject": "' + "x" * 201 + '"}',
    "NUL": '{"subject": "a\\u0000"}',
    "control character": '{"subject": "\\u0085"}',
    "half a character": '{"subject": "\\ud800"}',
    "number": '{"subject": 7}',
    "unknown field": '{"subject": "a", "model": "b"}',
    "empty reason": '{"subject": "a", "reason": ""}',
    "long reason": '{"subject": "a", "reason": "' + "x" * 501 + '"}',
    "NUL in the reason": '{"subject": "a", "reason": "\\u0000"}',
    "before 1970, no zone": '{"subject": "a", "received_at": "1969-12-31T23:59:59"}',
    "far future, no zone": '{"subject": "a", "received_at": "9999-12-31"}',
    "no time": '{"subject": "a", "received_at": "soon"}',
    "far future": '{"subject": "a", "received_at": "9999-12-31T23:59:59Z"}',
    "before all time": '{"subject": "a", "received_at": "0001-01-01T00:00:00+14:00"}',
    "after all time": '{"subject": "a", "received_at": "9999-12-31T23:59:59-14:00"}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_refused(stack: Stack, api: httpx.Client, body: str) -> None:
    refused(api.post("/v1/erasures", content=body, headers=JSON), 422, "request_invalid")


@pytest.mark.parametrize("when", ["2020-01-31T12:00:00", "2020-01-31 12:00"])
def test_a_time_without_a_zone_is_utc(stack: Stack, api: httpx.Client, when: str) -> None:
    assert open_erasure(stack, api, received_at=when)["received_at"] == LONG_AGO
    assert open_erasure(stack, api, received_at=when[:10])["received_at"] == "2020-01-31T00:00:00Z"


def test_a_request_that_matches_nothing_waits_for_a_person(stack: Stack, api: httpx.Client) -> None:
    waiting = ask(api, somebody())
    assert (waiting["state"], waiting["models"], waiting["receipt"]) == ("unmatched", [], None)
    assert waiting["id"] in {erasure["id"] for erasure in paged(api, "/v1/erasures", state="unmatched")}
    done = act(api, waiting["id"], "approve").json()
    assert (done["state"], [step["action"] for step in done["trail"]]) == (
        "completed",
        ["filed", "approved", "completed"],
    )
    assert "No example was found" in api.get(done["receipt"]).json()["statement"]
    refused(act(api, done["id"], "approve"), 409, "erasure_not_held")
    other = ask(api, somebody())
    assert act(api, other["id"], "refuse", reason="not a customer").json()["state"] == "refused"


def test_all_identifiers_of_a_person_are_erased_together(stack: Stack, api: httpx.Client) -> None:
    person, alias = somebody(), somebody()
    name = model_with_person(stack, api, person)
    add(api, name, [{**row, "subject": alias} for row in rows(3, "alias-")])
    answer = api.post("/v1/erasures", json={"subjects": [person, alias]})
    assert (answer.status_code, answer.json()["models"][0]["examples"]) == (202, 5)
    assert ask(api, alias)["id"] == ask(api, person, subjects=[alias])["id"] == answer.json()["id"]
    other = ask(api, somebody())
    assert ask(api, somebody(), subjects=[somebody()])["id"] != other["id"]


def test_identifiers_of_two_open_requests_are_a_conflict(stack: Stack, api: httpx.Client) -> None:
    one, two = somebody(), somebody()
    ids = [ask(api, person)["id"] for person in (one, two)]
    problem = refused(api.post("/v1/erasures", json={"subjects": [one, two]}), 409, "erasure_ambiguous")
    assert all(id in problem["detail"] for id in ids)


def test_a_request_cannot_be_received_in_the_future(stack: Stack, api: httpx.Client) -> None:
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    problem = refused(api.post("/v1/erasures", json={"subject": "a", "received_at": later}), 422, "request_invalid")
    assert location(problem)[-1] == "received_at"


def test_a_refusal_is_final_and_has_a_reason(stack: Stack, api: httpx.Client) -> None:
    id = open_erasure(stack, api)["id"]
    refused(act(api, id, "refuse", reason=""), 422, "request_invalid")
    nothing = refused(api.post(f"/v1/erasures/{id}/refuse"), 422, "request_invalid")
    assert nothing["detail"] == "The body is missing. Send a JSON object with 'reason'."
    answer = act(api, id, "refuse", reason="kept by law").json()
    assert (answer["state"], answer["refusal"], answer["overdue"]) == ("refused", "kept by law", False)
    assert answer["completed_at"] is None
    assert [step["action"] for step in answer["trail"]] == ["filed", "refused"]
    refused(act(api, id, "refuse", reason="again"), 409, "erasure_ended")
    refused(act(api, id, "extend", reason="later"), 409, "erasure_ended")
    refused(act(api, id, "retry"), 409, "erasure_not_failed")
    refused(api.get(f"/v1/erasures/{id}/receipt"), 404, "receipt_not_found")


def test_the_due_date_moves_once_by_two_months(stack: Stack, api: httpx.Client) -> None:
    asked = open_erasure(stack, api)
    answer = act(api, asked["id"], "extend", reason="many requests").json()
    moved = months_after(datetime.fromisoformat(asked["received_at"]), 3)
    assert (datetime.fromisoformat(answer["due_at"]), answer["extension"]) == (moved, "many requests")
    refused(act(api, asked["id"], "extend", reason="more"), 409, "erasure_extended")


def test_a_request_that_is_late_stays_late(stack: Stack, api: httpx.Client) -> None:
    late = open_erasure(stack, api, received_at=LONG_AGO)
    refused(act(api, late["id"], "extend", reason="many"), 409, "erasure_late")
    assert show(api, late["id"]) == as_shown(late)
    assert act(api, late["id"], "refuse", reason="kept by law").json()["late"] is True


def test_an_extension_after_the_first_month_of_an_earlier_request_does_not_count(
    stack: Stack, api: httpx.Client
) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    id = ask(api, person)["id"]
    act(api, id, "extend", reason="many").raise_for_status()
    joined = ask(api, person, received_at=LONG_AGO)
    assert (joined["id"], joined["due_at"], joined["overdue"]) == (id, "2020-02-29T12:00:00Z", True)


def test_a_failed_erasure_has_an_error_and_can_be_retried(stack: Stack, api: httpx.Client) -> None:
    refused(act(api, open_erasure(stack, api)["id"], "retry"), 409, "erasure_not_failed")
    erasure = fail_erasure(stack, api)
    assert erasure["state"] == erasure["models"][0]["state"] == "failed"
    assert erasure["models"][0]["error"] == {"code": "solver_failed", "detail": "no luck"}
    again = act(api, erasure["id"], "retry").json()
    assert (again["state"], again["models"][0]["error"]) == ("received", None)


def test_all_failed_erasures_are_retried(stack: Stack, api: httpx.Client) -> None:
    ids = {fail_erasure(stack, api)["id"] for _ in range(2)}
    assert set(api.post("/v1/erasures/retry").json()["retried"]) >= ids
    assert {show(api, id)["state"] for id in ids} == {"received"}
    assert api.post("/v1/erasures/retry").json() == {"retried": []}


def test_the_job_of_an_erasure_cannot_be_cancelled(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    of_model = {"model": erasure["models"][0]["model"], "kind": "erase"}
    [job] = api.get("/v1/jobs", params=of_model).json()["items"]
    refused(api.post(f"/v1/jobs/{job['id']}/cancel"), 409, "job_required")


def test_a_model_that_is_deleted_meanwhile_has_forgotten_the_person_too(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    assert api.delete(f"/v1/models/{erasure['models'][0]['model']}").status_code == 204
    assert show(api, erasure["id"])["state"] == "purging"
    complete_erasures(stack.database, Store(stack.settings.artifacts), mlflow=False)  # as the tick does
    done = show(api, erasure["id"])
    assert done["state"] == done["models"][0]["state"] == "completed"
    assert api.get(done["receipt"]).json()["found"] == 2
    assert api.get("/v1/receipts/verify").json()["valid"]


def test_lists_are_paged_filtered_and_start_with_the_newest(stack: Stack, api: httpx.Client) -> None:
    late, early = open_erasure(stack, api, received_at=LONG_AGO), open_erasure(stack, api)
    done = act(api, ask(api, somebody())["id"], "approve").json()
    ids = [erasure["id"] for erasure in paged(api, "/v1/erasures")]
    assert ids[:3] == [done["id"], early["id"], late["id"]]
    assert len(ids) == len(set(ids))
    overdue = {erasure["id"] for erasure in paged(api, "/v1/erasures", overdue=True)}
    assert late["id"] in overdue
    assert overdue.isdisjoint({early["id"], done["id"]})
    in_time = {erasure["id"] for erasure in paged(api, "/v1/erasures", overdue=False)}
    assert in_time == set(ids) - overdue
    for state, id in (("received", late["id"]), ("completed", done["id"])):
        found = {erasure["id"]: erasure["state"] for erasure in paged(api, "/v1/erasures", state=state)}
        assert id in found
        assert set(found.values()) == {state}


@pytest.mark.parametrize("query", ["state=none", "overdue=7", "limit=0", "after=none", "after=%00"])
def test_a_bad_query_is_refused(stack: Stack, api: httpx.Client, query: str) -> None:
    refused(api.get(f"/v1/erasures?{query}"), 422)


def test_metrics_count_overdue_erasures(stack: Stack, api: httpx.Client) -> None:
    def overdue() -> float:
        return float(re.findall(r"^amend_erasures_overdue (\S+)$", api.get("/metrics").text, re.MULTILINE)[0])

    stack.wait_until(lambda: overdue() == len(list(paged(api, "/v1/erasures", overdue=True))))
    before = overdue()
    erasure = open_erasure(stack, api, received_at=LONG_AGO)
    stack.wait_until(lambda: overdue() == before + 1)  # the figures are kept for a moment
    assert 'amend_erasures{state="received"}' in api.get("/metrics").text
    act(api, erasure["id"], "refuse", reason="no").raise_for_status()
    stack.wait_until(lambda: overdue() == before)


@pytest.mark.parametrize("id", ["none", "%00", "x" * 36])
def test_an_unknown_erasure_is_not_found(stack: Stack, api: httpx.Client, id: str) -> None:
    refused(api.get(f"/v1/erasures/{id}"), 404, "erasure_not_found")
    refused(api.get(f"/v1/erasures/{id}/receipt"), 404, "erasure_not_found")
    refused(act(api, id, "retry"), 404, "erasure_not_found")
    refused(act(api, id, "refuse", reason="no"), 404, "erasure_not_found")
    refused(act(api, id, "extend", reason="no"), 404, "erasure_not_found")


def test_an_erasure_is_found_by_a_prefix_of_its_id(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    assert show(api, erasure["id"][:13]) == as_shown(erasure)
    refused(api.get(f"/v1/erasures/{erasure['id'][:5]}"), 404, "erasure_not_found")
    refused(api.get(f"/v1/erasures?after={erasure['id'][:13]}"), 422, "cursor_invalid")
    assert act(api, erasure["id"][:13], "refuse", reason="no").json()["id"] == erasure["id"]
    assert api.get(f"/v1/erasures/{erasure['id'][:13]}/refusal").status_code == 200


def test_neither_the_person_nor_the_reason_nor_the_examples_are_in_the_log(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = stack.model()
    add(api, name, [{**row, "subject": person} for row in rows(2, "private-")])
    erasure = ask(api, person, reason="a private reason")
    act(api, erasure["id"], "extend", reason="a private reason").raise_for_status()
    refused(api.post("/v1/erasures", json={"subject": f"{person}\n", "reason": "a private reason"}), 422)
    act(api, erasure["id"], "refuse", reason="a private reason").raise_for_status()
    log = stack.log.read_text()
    assert "/v1/erasures/{id" in log
    for word in (person, "private"):
        assert word not in log
    assert all(isinstance(json.loads(line), dict) for line in log.splitlines())


def test_the_person_is_stored_as_a_hash_alone_and_not_beyond_the_end(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    id = ask(api, person, reason="a private reason")["id"]
    with stack.database.read() as session:
        erasure = queries.find(session, id)
        [hashed] = subjects_of(session, erasure)
        assert session.query(Example).where(Example.subject == hashed).count() == 2
        assert person.encode() not in hashed
    act(api, id, "refuse", reason="no").raise_for_status()
    with stack.database.read() as session:
        erasure = queries.find(session, id)
        assert (subjects_of(session, erasure), erasure.reason) == ([], None)


def test_the_erasure_of_a_person_whose_examples_without_labels_are_restricted_is_received(
    stack: Stack, api: httpx.Client
) -> None:
    person, name = somebody(), stack.model()
    add(api, name, [{"id": "waiting", "subject": person, "x": [1.0, 2.0], "y": None}])
    api.post("/v1/restrictions", json={"subject": person, "reason": "contested"}).raise_for_status()
    erasure = ask(api, person)
    assert [erasure["state"], *(part["model"] for part in erasure["models"])] == ["received", name]
