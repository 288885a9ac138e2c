"""Held erasure requests: approve, refuse. No worker runs here, so none is completed."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx

from core.erasure import requests
from core.erasure.deleted_models import complete_erasures
from core.jobs import due_jobs
from core.lifecycle import erase_schedule
from core.models import catalog
from core.tables.jobs import JobKind
from core.tables.ledger import Change
from core.versions.store import Store
from tests.service.erasure_helpers import act, ask, model_with_person, open_erasure, show, somebody
from tests.service.expect import add, listed, paged, refused, rows
from tests.stack import Stack

LONG_AGO = "2020-01-31T12:00:00Z"


def jobs(api: httpx.Client, name: str, **wanted: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = api.get("/v1/jobs", params={"model": name, **wanted}).json()["items"]
    return found


def test_a_held_request_takes_the_examples_out_of_force_and_does_nothing_else(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    erasure = ask(api, person, hold=True)
    assert (erasure["state"], erasure["models"][0]["state"], erasure["receipt"]) == ("held", "held", None)
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5"]
    assert jobs(api, name) == []
    assert erasure["id"] in {held["id"] for held in paged(api, "/v1/erasures", state="held")}
    again = ask(api, person, hold=False)  # it is the same request, and waits for a decision still
    assert (again["id"], again["state"], jobs(api, name)) == (erasure["id"], "held", [])


def test_a_held_request_for_an_unknown_person_waits_for_the_decision(api: httpx.Client) -> None:
    erasure = ask(api, somebody(), hold=True)
    assert (erasure["state"], erasure["models"]) == ("held", [])
    assert act(api, erasure["id"], "approve").json()["state"] == "completed"


def test_a_held_request_is_due_a_month_after_it_was_received(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api, hold=True, received_at=LONG_AGO)
    assert (erasure["due_at"], erasure["overdue"]) == ("2020-02-29T12:00:00Z", True)
    assert erasure["id"] in {late["id"] for late in paged(api, "/v1/erasures", overdue=True)}


def test_an_approved_request_covers_examples_added_meanwhile(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    id = ask(api, person, hold=True)["id"]
    add(api, name, [{**row, "subject": person} for row in rows(1, "later")])
    answer = act(api, id, "approve").json()
    assert (answer["state"], answer["models"][0]["examples"]) == ("received", 3)
    assert len(jobs(api, name, kind=JobKind.ERASE)) == 1
    refused(act(api, id, "approve"), 409, "erasure_not_held")


def test_new_examples_of_a_person_with_a_held_request_are_restricted_by_the_tick(
    stack: Stack, api: httpx.Client
) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    id = ask(api, person, hold=True)["id"]
    add(api, name, [{**row, "subject": person} for row in rows(1, "later")])
    requests.restrict_waiting(stack.database)
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5"]
    assert (show(api, id)["state"], show(api, id)["models"][0]["examples"]) == ("held", 3)
    assert jobs(api, name) == []
    act(api, id, "refuse", reason="no").raise_for_status()
    assert len(listed(api, name)) == 7


def test_a_refused_request_puts_the_examples_back_as_new_changes(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    stack.train(name)
    before = {row["id"]: row for row in listed(api, name)}
    id = ask(api, person, hold=True)["id"]
    assert len(listed(api, name)) == 4
    answer = act(api, id, "refuse", reason="kept by law").json()
    assert (answer["state"], answer["refusal"], answer["models"][0]["state"]) == ("refused", "kept by law", "refused")
    back = {row["id"]: row for row in listed(api, name)}
    assert {id: {**row, "position": 0} for id, row in back.items()} == {
        id: {**row, "position": 0} for id, row in before.items()
    }
    assert (back["e0"]["position"], back["e1"]["position"]) == (9, 10)
    model = api.get(f"/v1/models/{name}").json()
    assert (model["head"], model["counts"]["train"]) == (10, 6)
    assert [job["kind"] for job in jobs(api, name)] == ["adapt"]
    with stack.database.read() as session:
        kinds = [session.get_one(Change, (model_id(stack, name), last)).kind for last in (6, 8, 10)]
    assert kinds == ["added", "removed", "restored"]
    again = ask(api, person)  # they are still theirs
    assert again["models"][0]["examples"] == 2


def model_id(stack: Stack, name: str) -> int:
    with stack.database.read() as session:
        return catalog.find(session, name, None).id


def test_a_request_that_was_not_held_can_be_refused_until_something_is_deleted(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    act(api, ask(api, person)["id"], "refuse", reason="no").raise_for_status()
    assert len(listed(api, name)) == 6


def test_an_example_whose_id_was_reused_stays_removed(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    id = ask(api, person, hold=True)["id"]
    add(api, name, [{"id": "e0", "x": [9, 9], "y": 1}])
    act(api, id, "refuse", reason="no").raise_for_status()
    assert {row["id"]: row["x"] for row in listed(api, name)}["e0"] == [9, 9]
    assert len(listed(api, name)) == 6


def test_an_example_that_is_removed_while_the_request_is_held_stays_out(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    id = ask(api, person, hold=True)["id"]
    answer = api.post(f"/v1/models/{name}/removals", json={"ids": ["e0", "zz"]}).json()
    assert (answer["removed"], answer["unknown"]) == (0, ["zz"])
    act(api, id, "refuse", reason="kept by law").raise_for_status()
    assert {row["id"] for row in listed(api, name)} == {"e1", "e2", "e3", "e4", "e5"}


def test_an_example_that_was_removed_before_the_request_stays_out(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e0"]}).raise_for_status()
    id = ask(api, person, hold=True)["id"]
    act(api, id, "refuse", reason="no").raise_for_status()
    assert {row["id"] for row in listed(api, name)} == {"e1", "e2", "e3", "e4", "e5"}


def test_the_history_names_the_id_of_the_key(stack: Stack, api: httpx.Client) -> None:
    with stack.client(stack.key("erase")) as other:
        mine, theirs = (key_id(client) for client in (api, other))
        asked = open_erasure(stack, api, hold=True)
        act(other, asked["id"], "extend", reason="many").raise_for_status()
        act(api, asked["id"], "approve").raise_for_status()
        answer = act(other, asked["id"], "refuse", reason="no").json()
    told = [(event["action"], event["by"]) for event in answer["trail"]]
    assert told == [
        ("filed", mine),
        ("held", mine),
        ("extended", theirs),
        ("approved", mine),
        ("refused", theirs),
    ]
    moments = [datetime.fromisoformat(event["at"]) for event in answer["trail"]]
    assert moments == sorted(moments)
    assert moments[-1] <= datetime.now(UTC)


def key_id(client: httpx.Client) -> str:
    return client.headers["authorization"].split("_")[1]


def test_the_receipt_has_the_history_of_the_request(api: httpx.Client) -> None:
    erasure = ask(api, somebody(), hold=True)
    done = act(api, erasure["id"], "approve").json()
    receipt = api.get(done["receipt"]).json()
    assert [event["action"] for event in receipt["trail"]] == ["filed", "held", "approved"]
    moments = [receipt[name] for name in ("received_at", "due_at", "completed_at")]
    assert all(moment.endswith("Z") for moment in [*moments, *(event["at"] for event in receipt["trail"])])
    page = api.get(done["receipt"], headers={"Accept": "text/html"}).text
    assert f"approved by {receipt['trail'][-1]['name']}" in page
    assert receipt["trail"][-1]["by"] == key_id(api)


def test_a_model_deleted_while_the_request_is_held_does_not_block_it(stack: Stack, api: httpx.Client) -> None:
    one, two = (open_erasure(stack, api, hold=True) for _ in range(2))
    for erasure in (one, two):
        assert api.delete(f"/v1/models/{erasure['models'][0]['model']}").status_code == 204
        assert show(api, erasure["id"])["state"] == "held"
    assert act(api, one["id"], "refuse", reason="no").json()["state"] == "refused"
    act(api, two["id"], "approve").raise_for_status()
    complete_erasures(stack.database, Store(stack.settings.artifacts), mlflow=False)  # as the tick does
    assert show(api, two["id"])["state"] == "completed"


def test_a_held_request_alone_schedules_no_job(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = stack.model(policy={"adapt": {"after_changes": 2, "every": "1s"}, "retrain": {"every": "1s"}})
    add(api, name, [{**row, "subject": person} if i < 3 else row for i, row in enumerate(rows(6))])
    stack.train(name)
    ask(api, person, hold=True)

    def due(seconds: float) -> list[JobKind]:
        with stack.database.read() as session:
            model = catalog.find(session, name, None)
            moment = datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC)
            wanted = erase_schedule.decide_erase(session, model, moment) + due_jobs.decide_jobs(session, model, moment)
            return [decision.kind for decision in wanted if decision.due]

    assert due(3600) == []
    add(api, name, rows(1, "later"))
    assert due(3600) == [JobKind.ADAPT, JobKind.RETRAIN]
    add(api, name, rows(1, "again"))
    assert JobKind.ADAPT in due(0)


def test_a_refusal_is_a_letter_to_print(stack: Stack, api: httpx.Client) -> None:
    asked = open_erasure(stack, api, received_at=LONG_AGO)
    place = f"/v1/erasures/{asked['id']}/refusal"
    refused(api.get(place), 404, "refusal_not_found")
    act(api, asked["id"], "refuse", reason="kept by <law>").raise_for_status()
    told = api.get(place).json()
    assert (told["erasure"], told["reason"], told["late"]) == (asked["id"], "kept by <law>", True)
    page = api.get(place, headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    told = "2 records about you were left out of new training. From now on, the records are used again."
    for words in ("Reason: kept by &lt;law&gt;", told, "complaint", "supervisory authority", "court"):
        assert words in page.text


def test_a_refusal_counts_only_restored_examples(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    gone = model_with_person(stack, api, person)
    id = ask(api, person, hold=True)["id"]
    api.delete(f"/v1/models/{gone}").raise_for_status()
    add(api, name, [{"id": "e0", "x": [9, 9], "y": 0, "split": "train"}])  # the id is another example's now
    act(api, id, "refuse", reason="no").raise_for_status()
    assert api.get(f"/v1/erasures/{id}/refusal").json()["examples"] == 1
