"""Examples about people whose data was erased: recognised in every way in which examples arrive."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from core.tables.webhooks import Delivery
from tests.service.erasure_helpers import ask, erase_nobody, somebody
from tests.service.expect import add, listed, paged, refused, rows
from tests.stack import Stack

pytestmark = pytest.mark.both_databases


def erased(api: httpx.Client) -> str:
    """A person whose erasure is completed: no model had any data."""
    person = somebody()
    assert erase_nobody(api, person)["state"] == "completed"
    return person


def about(person: str, count: int = 4, prefix: str = "e") -> list[dict[str, Any]]:
    """Examples of which every second one is about a person."""
    return [{**row, "subject": person if i % 2 else f"other {i}"} for i, row in enumerate(rows(count, prefix))]


def quarantined(api: httpx.Client, name: str) -> list[str]:
    return [row["id"] for row in paged(api, f"/v1/models/{name}/examples", state="quarantined")]


def counts(api: httpx.Client, name: str) -> dict[str, int]:
    found: dict[str, int] = api.get(f"/v1/models/{name}").raise_for_status().json()["counts"]
    return found


def to_csv(examples: list[dict[str, Any]]) -> str:
    lines = [f"{row['id']},{row['subject']},{row['y']},{row['x'][0]},{row['x'][1]}" for row in examples]
    return "\n".join(["id,subject,y,x0,x1", *lines])


def test_returning_examples_are_quarantined_in_every_format(stack: Stack, api: httpx.Client) -> None:
    name, person = stack.model(), erased(api)
    path = f"/v1/models/{name}/examples"
    lines = "\n".join(json.dumps(row) for row in about(person, prefix="n"))
    sent = [
        api.post(path, json={"examples": about(person, prefix="j")}),
        api.post(path, json={"examples": about(person, prefix="k")}, headers={"Idempotency-Key": name}),
        api.post(path, content=lines, headers={"Content-Type": "application/x-ndjson"}),
        api.post(path, content=to_csv(about(person, prefix="c")), headers={"Content-Type": "text/csv"}),
    ]
    for answer in sent:
        added = answer.json()
        assert (answer.status_code, added["accepted"], added["quarantined"]) == (201, 4, 2), answer.text
        assert added["last_position"] - added["first_position"] == 3
    repeated = api.post(path, json={"examples": about(person, prefix="j")}).json()
    assert (repeated["accepted"], repeated["duplicates"], "quarantined" in repeated) == (0, 4, False)
    assert quarantined(api, name) == [f"{prefix}{i}" for prefix in "jknc" for i in (1, 3)]
    assert {row["id"] for row in listed(api, name)} == {f"{prefix}{i}" for prefix in "jknc" for i in (0, 2)}
    assert (counts(api, name)["train"] + counts(api, name)["holdout"], counts(api, name)["quarantined"]) == (8, 8)


def test_an_erasure_is_effective_for_the_next_request(stack: Stack, api: httpx.Client) -> None:
    name, person = stack.model(), somebody()
    assert "quarantined" not in add(api, name, [{**rows(1)[0], "subject": person}])
    api.post(f"/v1/models/{name}/removals", json={"subjects": [person]}).raise_for_status()
    later = erased(api)
    assert add(api, name, [{**rows(1, "later")[0], "subject": later}])["quarantined"] == 1


def test_labels_and_corrections_are_checked(stack: Stack, api: httpx.Client) -> None:
    name, person = stack.model(), erased(api)
    path = f"/v1/models/{name}"
    waiting = [{**row, "y": None} for row in about(person)]
    assert "quarantined" not in add(api, name, waiting)  # not in force yet
    labels = [{"id": row["id"], "y": 1} for row in waiting]
    stored = api.post(f"{path}/labels", json={"labels": labels}).raise_for_status().json()
    assert (stored["accepted"], stored["quarantined"]) == (4, 2)
    assert quarantined(api, name) == ["e1", "e3"]
    corrected = api.put(f"{path}/examples/e0", json={"x": [1, 2], "y": 0, "subject": person}).raise_for_status().json()
    assert (corrected["replaced"], corrected["quarantined"]) == (1, 1)
    assert sorted(quarantined(api, name)) == ["e0", "e1", "e3"]
    shown = counts(api, name)
    assert (shown["train"] + shown["holdout"], shown["quarantined"], shown["unlabelled"]) == (1, 3, 0)


def test_a_person_accepts_or_discards_them(stack: Stack, api: httpx.Client) -> None:
    name, person, other = stack.model(), erased(api), erased(api)
    add(api, name, [*about(person, 6), {**rows(1, "o")[0], "subject": other}])
    path = f"/v1/models/{name}/returned"
    refused(api.post(f"{path}/accept", json={"ids": ["e0"]}), 404, "example_not_found")
    assert api.post(f"{path}/discard", json={"ids": ["e1"]}).raise_for_status().json()["examples"] == 1
    assert api.post(f"{path}/accept", json={"ids": ["e3", "e5"]}).raise_for_status().json()["examples"] == 2
    assert quarantined(api, name) == ["o0"]
    assert {row["id"] for row in listed(api, name)} == {"e0", "e2", "e3", "e4", "e5"}
    assert "quarantined" not in add(api, name, [{**rows(1, "again")[0], "subject": person}])
    assert add(api, name, [{**rows(1, "still")[0], "subject": other}])["quarantined"] == 1
    removed = api.post(f"/v1/models/{name}/removals", json={"subjects": [other]}).raise_for_status().json()
    assert (removed["removed"], removed["job"], quarantined(api, name)) == (2, None, [])
    refused(stack.client(stack.key("ingest", "read")).post(f"{path}/accept", json={}), 403, "scope_missing")


def test_the_event_contains_no_personal_data(stack: Stack, api: httpx.Client) -> None:
    webhook = api.post("/v1/webhooks", json={"url": "https://receiver.example/", "events": ["subject.returned"]}).json()
    name, person = stack.model(), erased(api)
    add(api, name, about(person))
    add(api, name, [{**row, "y": None} for row in about(person, 2, "late")])
    api.post(f"/v1/models/{name}/labels", json={"labels": [{"id": "late1", "y": 1}]}).raise_for_status()
    with stack.database.read() as session:
        bodies = session.scalars(select(Delivery.body).where(Delivery.webhook_id == webhook["id"])).all()
    found = [body for body in map(json.loads, bodies) if body["data"]["model"] == name]
    assert [(body["data"]["examples"], body["data"]["quarantined"]) for body in found] == [(2, 2), (1, 0), (1, 1)]
    assert {*found[0]["data"]} == {"model", "examples", "quarantined"}
    api.delete(f"/v1/webhooks/{webhook['id']}").raise_for_status()


def test_a_new_request_includes_quarantined_examples(stack: Stack, api: httpx.Client) -> None:
    name, person = stack.model(), erased(api)
    add(api, name, about(person))
    again = ask(api, person)
    assert [(part["model"], part["examples"]) for part in again["models"]] == [(name, 2)]
    accepted = api.post(f"/v1/models/{name}/returned/accept", json={}).raise_for_status().json()
    assert accepted["examples"] == 0  # they wait for the erasure


def test_returning_examples_can_be_refused(small: Stack) -> None:
    with small.client() as api:
        name, person = small.model(), somebody()
        erasure = erase_nobody(api, person)
        assert erasure["state"] == "completed"
        problem = refused(api.post(f"/v1/models/{name}/examples", json={"examples": about(person)}), 409)
        assert problem["code"] == "subject_returned"
        assert [error["loc"] for error in problem["errors"]] == [["examples", 1], ["examples", 3]]
        assert person not in json.dumps(problem)
        assert add(api, name, about("someone else"))["accepted"] == 4
        moved = api.put(f"/v1/models/{name}/examples/e0", json={"x": [1, 2], "y": 0, "subject": person})
        refused(moved, 409, "subject_returned")
