"""Corrections replace examples at one position and enqueue an adaptation."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import select

from core.models import catalog
from core.tables.ledger import Example
from tests.service.erasure_helpers import act, ask, model_with_person, somebody
from tests.service.expect import JSON, add, listed, location, refused, rows
from tests.stack import Stack

CORRECT = {"x": [9, 9], "y": 1}


def correct(api: httpx.Client, name: str, id: str, **content: Any) -> dict[str, Any]:
    answer = api.put(f"/v1/models/{name}/examples/{id}", json=content)
    assert answer.status_code == 202, answer.text
    replaced: dict[str, Any] = answer.json()
    return replaced


def correct_all(api: httpx.Client, name: str, examples: list[dict[str, Any]]) -> httpx.Response:
    return api.put(f"/v1/models/{name}/examples", json={"examples": examples})


def filled(stack: Stack, api: httpx.Client, count: int = 6) -> str:
    name = stack.model()
    add(api, name, rows(count))
    return name


def model_of(api: httpx.Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/models/{name}").json()
    return found


def stored(stack: Stack, name: str, id: str) -> list[Example]:
    """All rows that an id ever had, in their order."""
    with stack.database.read() as session:
        model = catalog.find(session, name, None)
        ours = select(Example).where(Example.model_id == model.id, Example.id == id)
        return list(session.scalars(ours.order_by(Example.position)))


def test_a_correction_removes_and_adds_at_one_position(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    assert correct(api, name, "e1", **CORRECT) == {"replaced": 1, "unchanged": 0, "position": 7, "job": None}
    shown = api.get(f"/v1/models/{name}/examples/e1").json()
    assert shown == {"id": "e1", "x": [9.0, 9.0], "y": 1, "split": "train", "weight": 1, "position": 7}
    assert [row["id"] for row in listed(api, name)] == ["e0", "e2", "e3", "e4", "e5", "e1"]
    assert (model_of(api, name)["counts"], model_of(api, name)["head"]) == (
        {"train": 6, "holdout": 0, "removed": 1, "quarantined": 0, "unlabelled": 0},
        7,
    )
    assert [(row.position, row.removed) for row in stored(stack, name, "e1")] == [(2, 7), (7, None)]


def test_the_same_content_again_does_nothing(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    correct(api, name, "e1", **CORRECT)
    assert correct(api, name, "e1", **CORRECT) == {"replaced": 0, "unchanged": 1, "position": 7, "job": None}
    assert model_of(api, name)["head"] == 7


def test_a_correction_keeps_subject_and_split_unless_given(stack: Stack, api: httpx.Client) -> None:
    person, other, name = somebody(), somebody(), stack.model()
    add(api, name, [{"id": "a", "x": [1, 2], "y": 0, "subject": person, "split": "holdout"}])
    correct(api, name, "a", **CORRECT)
    first, second = stored(stack, name, "a")
    assert (first.subject, first.holdout) == (second.subject, second.holdout)
    assert second.holdout
    assert second.subject is not None
    assert model_of(api, name)["counts"] == {"train": 0, "holdout": 1, "removed": 1, "quarantined": 0, "unlabelled": 0}
    correct(api, name, "a", **CORRECT, subject=other, split="train")
    third = stored(stack, name, "a")[-1]
    assert (third.subject != second.subject, third.holdout) == (True, False)
    assert model_of(api, name)["counts"] == {"train": 1, "holdout": 0, "removed": 2, "quarantined": 0, "unlabelled": 0}


def test_a_correction_enqueues_the_same_job_as_a_removal(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    made = correct(api, name, "e0", **CORRECT)
    job = api.get(f"/v1/jobs/{made['job']}").json()
    assert (job["kind"], job["state"], job["from_position"], job["to_position"]) == ("adapt", "queued", 6, 7)
    removed = api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}).json()
    assert (removed["job"], removed["position"]) == (made["job"], 8)


def test_a_held_model_waits_until_it_is_resumed(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    stack.train(name)
    api.post(f"/v1/models/{name}/hold").raise_for_status()
    assert correct(api, name, "e0", **CORRECT)["job"] is None
    assert api.post(f"/v1/models/{name}/resume").json()["job"] is not None


def test_corrections_are_listed_among_the_changes(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    correct(api, name, "e0", **CORRECT)
    regularizer = {"kind": "l2", "delta": 2.0, "penalize_bias": False}
    api.post(f"/v1/models/{name}/changes", json={"regularizer": regularizer}).raise_for_status()
    correct_all(api, name, [{"id": "e1", **CORRECT}, {"id": "e2", **CORRECT}]).raise_for_status()
    found, after = [], None
    while after != "":
        page = api.get(f"/v1/models/{name}/changes", params={"limit": 1, **({"after": after} if after else {})}).json()
        found += [(one["position"], one["kind"], one["examples"], one["value"]) for one in page["items"]]
        after = page["next"] or ""
    assert found == [(10, "replaced", 2, None), (8, "regularizer", None, regularizer), (7, "replaced", 1, None)]
    refused(api.post(f"/v1/models/{name}/changes", json={"revert": 7}), 422, "change_irreversible")


def test_removed_examples_cannot_be_corrected(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}).raise_for_status()
    for id in ("e1", "zz", "%00", ""):
        refused(api.put(f"/v1/models/{name}/examples/{id}", json=CORRECT), 404, "example_not_found")
    refused(api.put("/v1/models/nobody/examples/e1", json=CORRECT), 404, "model_not_found")
    assert model_of(api, name)["head"] == 7


def test_examples_restricted_by_a_held_request_cannot_be_corrected_and_return_unchanged(
    stack: Stack, api: httpx.Client
) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    correct(api, name, "e0", **CORRECT)
    id = ask(api, person, hold=True)["id"]
    refused(api.put(f"/v1/models/{name}/examples/e0", json={"x": [5, 5], "y": 0}), 404, "example_not_found")
    act(api, id, "refuse", reason="no").raise_for_status()
    assert api.get(f"/v1/models/{name}/examples/e0").json()["x"] == [9.0, 9.0]


def test_an_erasure_finds_what_an_example_was_before_it_was_corrected(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    name = model_with_person(stack, api, person)
    correct(api, name, "e0", **CORRECT)
    correct(api, name, "e1", **CORRECT, subject=somebody())  # it was about somebody else
    [part] = ask(api, person)["models"]
    assert part["examples"] == 2  # the corrected one counts once, and so does what the other was before
    assert [row["id"] for row in listed(api, name)] == ["e2", "e3", "e4", "e5", "e1"]


BAD: dict[str, tuple[Any, int, str, list[str | int] | None]] = {
    "an id": ({"id": "e0", **CORRECT}, 422, "example_invalid", []),
    "no target": ({"x": [1, 2]}, 422, "example_invalid", []),
    "three numbers": ({"x": [1, 2, 3], "y": 1}, 422, "example_shape_mismatch", ["x"]),
    "a text": ({"x": [1, "a"], "y": 1}, 422, "example_invalid", ["x", 1]),
    "another class": ({"x": [1, 2], "y": 7}, 422, "label_invalid", ["y"]),
    "a list": ([CORRECT], 422, "example_invalid", []),
    "a split": ({**CORRECT, "split": "test"}, 422, "example_invalid", ["split"]),
    "a subject": ({**CORRECT, "subject": ""}, 422, "subject_invalid", ["subject"]),
}


@pytest.mark.parametrize(("body", "status", "code", "where"), BAD.values(), ids=BAD.keys())
def test_a_bad_correction_is_refused_with_its_place(
    stack: Stack, api: httpx.Client, body: Any, status: int, code: str, where: list[str | int]
) -> None:
    name = filled(stack, api)
    assert location(refused(api.put(f"/v1/models/{name}/examples/e0", json=body), status, code)) == where
    assert model_of(api, name)["head"] == 6


def test_one_example_is_json(stack: Stack, api: httpx.Client) -> None:
    path = f"/v1/models/{filled(stack, api)}/examples/e0"
    refused(api.put(path, content=b"{", headers=JSON), 400, "body_malformed")
    refused(api.put(path, content=b"y\n1\n", headers={"Content-Type": "text/csv"}), 415, "content_type_unsupported")


def test_each_correction_in_a_batch_takes_its_own_position(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    same = rows(6)[5]
    answer = correct_all(api, name, [{"id": "e4", **CORRECT}, same, {"id": "e1", **CORRECT}])
    assert answer.json() == {"replaced": 2, "unchanged": 1, "position": 8, "job": None}
    assert [(row["id"], row["position"]) for row in listed(api, name)][-2:] == [("e4", 7), ("e1", 8)]
    lines = "id,y,a,b\ne0,1,7,7\n"
    answer = api.put(f"/v1/models/{name}/examples", content=lines, headers={"Content-Type": "text/csv"})
    assert (answer.json()["replaced"], answer.json()["position"]) == (1, 9)


def test_a_batch_is_corrected_whole_or_not_at_all(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    answer = correct_all(api, name, [{"id": "e1", **CORRECT}, {"id": "zz", **CORRECT}])
    assert location(refused(answer, 404, "example_not_found")) == ["examples", 1]
    twice = correct_all(api, name, [{"id": "e1", **CORRECT}, {"id": "e2", **CORRECT}, {"id": "e1", **CORRECT}])
    assert location(refused(twice, 409, "example_conflict")) == ["examples", 2]
    assert model_of(api, name)["head"] == 6
    assert api.get(f"/v1/models/{name}/examples/e1").json()["position"] == 2


def test_thousands_are_corrected_at_once(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"holdout": 0})
    add(api, name, rows(6000))
    answer = correct_all(api, name, [{"id": f"e{i}", **CORRECT} for i in range(5500)])
    assert (answer.json()["replaced"], answer.json()["position"]) == (5500, 11_500)
    assert [row["position"] for row in listed(api, name)] == list(range(5501, 11_501))


def test_a_repeated_request_gets_the_first_response(stack: Stack, api: httpx.Client) -> None:
    name = filled(stack, api)
    word = {"Idempotency-Key": somebody()}
    first, second = (api.put(f"/v1/models/{name}/examples/e0", json=CORRECT, headers=word) for _ in range(2))
    assert first.json() == second.json()
    assert second.headers["Idempotent-Replayed"] == "true"


def test_the_scope_ingest_may_correct(stack: Stack, api: httpx.Client) -> None:
    path = f"/v1/models/{filled(stack, api)}/examples/e0"
    for scope, status in (("read", 403), ("erase", 403), ("ingest", 202)):
        with stack.client(stack.key(scope)) as caller:
            assert caller.put(path, json=CORRECT).status_code == status
