"""Idempotency-Key: every POST can be repeated and is executed once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from core.ledger.quarantine import quarantine
from core.models import catalog
from core.tables.bookkeeping import IdempotencyRecord
from core.tables.versions import VersionState
from core.versions.queries import find_version
from tests.service.erasure_helpers import ask, fail_erasure, open_erasure, somebody
from tests.service.expect import add, listed, operations, refused, rows
from tests.stack import Stack

Request = tuple[str, dict[str, Any] | None]


def some_job(stack: Stack, api: httpx.Client) -> str:
    return str(api.post(f"/v1/models/{trained(stack, api)}/adaptations").json()["id"])


def trained(stack: Stack, api: httpx.Client) -> str:
    name = stack.model()
    add(api, name, rows(6))
    stack.train(name)
    return name


def filled(stack: Stack, api: httpx.Client) -> str:
    name = stack.model()
    add(api, name, rows(6))
    return name


def unlabelled(stack: Stack, api: httpx.Client) -> str:
    name = stack.model()
    add(api, name, [{**row, "y": None} for row in rows(2)])
    return name


def held(stack: Stack, api: httpx.Client) -> str:
    name = trained(stack, api)
    api.post(f"/v1/models/{name}/hold").raise_for_status()
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}).raise_for_status()
    return name


def rejected(stack: Stack, api: httpx.Client) -> str:
    """A model whose only version failed the promotion gate, with two examples in quarantine."""
    name = trained(stack, api)
    with stack.database.write() as session:
        model = catalog.find(session, name, None, lock=True)
        quarantine(session, model, 0, 2, version=1)
        find_version(session, model, 1).state = VersionState.REJECTED
    return name


def returned(stack: Stack, api: httpx.Client) -> str:
    """A model with examples about a person whose data was erased."""
    name, person = stack.model(), somebody()
    ask(api, person)
    add(api, name, [{**row, "subject": person} for row in rows(2)])
    return name


def new_model() -> dict[str, Any]:
    name = f"i-{uuid.uuid4().hex[:12]}"
    return {"name": name, "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}


def new_webhook() -> dict[str, Any]:
    return {"url": f"https://receiver.example/{uuid.uuid4().hex}", "events": ["erasure.due_soon"]}


def some_webhook(api: httpx.Client) -> str:
    return str(api.post("/v1/webhooks", json=new_webhook()).json()["id"])


def restriction(api: httpx.Client) -> str:
    return str(api.post("/v1/restrictions", json={"subject": somebody()}).json()["id"])


def correction(stack: Stack, api: httpx.Client) -> dict[str, Any]:
    name, person = stack.model(), somebody()
    add(api, name, [{**row, "subject": person} for row in rows(2)])
    return {"subject": person, "model": name, "id": "e1", "x": [3.0, 4.0]}


LABELS = {"labels": [{"id": "e1", "y": 1}]}

REQUESTS: dict[str, Callable[[Stack, httpx.Client], Request]] = {
    "create_model": lambda stack, api: ("/v1/models", new_model()),
    "change_model": lambda stack, api: (f"/v1/models/{stack.model()}/changes", {"regularizer": {"kind": "l2"}}),
    "add_examples": lambda stack, api: (f"/v1/models/{stack.model()}/examples", {"examples": rows(3)}),
    "add_labels": lambda stack, api: (
        f"/v1/models/{unlabelled(stack, api)}/labels",
        {"labels": [{"id": "e1", "y": 1}]},
    ),
    "remove_examples": lambda stack, api: (f"/v1/models/{trained(stack, api)}/removals", {"ids": ["e1", "zz"]}),
    "import_weights": lambda stack, api: (f"/v1/models/{filled(stack, api)}/imports", {"weights": [0, 0, 0]}),
    "adapt": lambda stack, api: (f"/v1/models/{trained(stack, api)}/adaptations", None),
    "retrain": lambda stack, api: (f"/v1/models/{trained(stack, api)}/retrains", None),
    "cancel_job": lambda stack, api: (f"/v1/jobs/{some_job(stack, api)}/cancel", None),
    "promote_version": lambda stack, api: (f"/v1/models/{trained(stack, api)}/versions/1/promote", None),
    "accept_version": lambda stack, api: (f"/v1/models/{rejected(stack, api)}/versions/1/accept", None),
    "discard_version": lambda stack, api: (f"/v1/models/{rejected(stack, api)}/versions/1/discard", None),
    "accept_returned": lambda stack, api: (f"/v1/models/{returned(stack, api)}/returned/accept", {}),
    "discard_returned": lambda stack, api: (f"/v1/models/{returned(stack, api)}/returned/discard", {}),
    "hold_model": lambda stack, api: (f"/v1/models/{stack.model()}/hold", None),
    "resume_model": lambda stack, api: (f"/v1/models/{held(stack, api)}/resume", None),
    "make_predictions": lambda stack, api: (f"/v1/models/{trained(stack, api)}/predictions", {"inputs": [[1, 2]]}),
    "issue_key": lambda stack, api: ("/v1/keys", {"name": "repeated", "scopes": ["read"]}),
    "create_webhook": lambda stack, api: ("/v1/webhooks", new_webhook()),
    "test_webhook": lambda stack, api: (f"/v1/webhooks/{some_webhook(api)}/test", None),
    "request_erasure": lambda stack, api: ("/v1/erasures", {"subject": somebody()}),
    "request_erasures": lambda stack, api: ("/v1/erasures/batch", {"requests": [{"subject": somebody()}]}),
    "approve_erasure": lambda stack, api: (f"/v1/erasures/{open_erasure(stack, api, hold=True)['id']}/approve", None),
    "extend_erasure": lambda stack, api: (f"/v1/erasures/{open_erasure(stack, api)['id']}/extend", {"reason": "many"}),
    "refuse_erasure": lambda stack, api: (f"/v1/erasures/{open_erasure(stack, api)['id']}/refuse", {"reason": "no"}),
    "retry_erasure": lambda stack, api: (f"/v1/erasures/{fail_erasure(stack, api)['id']}/retry", None),
    "retry_failed_erasures": lambda stack, api: ("/v1/erasures/retry", fail_erasure(stack, api) and None),
    "replay_erasures": lambda stack, api: ("/v1/erasures/replay", None),
    "hold_erasure": lambda stack, api: (f"/v1/erasures/{open_erasure(stack, api)['id']}/hold", None),
    "withdraw_erasure": lambda stack, api: (f"/v1/erasures/{open_erasure(stack, api, hold=True)['id']}/withdraw", None),
    "restrict_subject": lambda stack, api: ("/v1/restrictions", {"subject": somebody()}),
    "lift_restriction": lambda stack, api: (f"/v1/restrictions/{restriction(api)}/lift", {"reason": "settled"}),
    "correct_subject": lambda stack, api: ("/v1/subjects/correct", correction(stack, api)),
    "start_analysis": lambda stack, api: (
        f"/v1/models/{trained(stack, api)}/analyses",
        {"kind": "preview", "remove": {"ids": ["e1"]}},
    ),
}
"""A request to each POST that would answer otherwise, or do something more, a second time."""


READING = ("look_up_subject", "export_subject", "find_requests", "spell_receipt", "infer", "infer_with_version")
READING += ("predict_table",)
"""They change nothing: a repetition reads again, and an answer about a person is not kept."""


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def test_every_post_takes_an_idempotency_key(stack: Stack, api: httpx.Client) -> None:
    posts = [op for op in operations(api) if op.method == "post" and op.id not in READING]
    for operation in posts:
        headers = [p["name"].lower() for p in operation.described["parameters"] if p["in"] == "header"]
        assert "idempotency-key" in headers, operation.id
    assert {operation.id for operation in posts} == {*REQUESTS, "upload_encoder"}  # its body is a file


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_replay_gets_the_first_answer(stack: Stack, api: httpx.Client, operation: str) -> None:
    path, body = REQUESTS[operation](stack, api)
    headers = key()
    first = api.post(path, json=body, headers=headers)
    assert first.is_success, first.text
    assert "idempotent-replayed" not in first.headers
    again = api.post(path, json=body, headers=headers)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("operation", REQUESTS)
def test_the_same_key_with_another_request_is_a_conflict(stack: Stack, api: httpx.Client, operation: str) -> None:
    headers = key()
    path, body = REQUESTS[operation](stack, api)
    assert api.post(path, json=body, headers=headers).is_success
    other_path, other_body = REQUESTS[operation](stack, api)
    if (other_path, other_body) == (path, body):
        other_body = {"name": "another", "scopes": ["read"]} if body else {}
    refused(api.post(other_path, json=other_body, headers=headers), 409, "idempotency_conflict")


def test_a_replayed_removal_does_not_remove_examples_that_were_added_again(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(3))
    headers = key()
    first = api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}, headers=headers)
    add(api, name, rows(3))
    assert api.post(f"/v1/models/{name}/removals", json={"ids": ["e1"]}, headers=headers).json() == first.json()
    assert len(listed(api, name)) == 3


def test_a_refused_request_may_be_repeated_and_succeed(stack: Stack, api: httpx.Client) -> None:
    name, headers = stack.model(), key()
    path = f"/v1/models/{name}/adaptations"
    refused(api.post(path, headers=headers), 409, "nothing_to_train_on")
    add(api, name, rows(3))
    assert api.post(path, headers=headers).status_code == 202


def test_another_holder_may_use_the_same_key(stack: Stack, api: httpx.Client) -> None:
    name, headers = stack.model(), key()
    for batch, text_ in ((rows(2), stack.admin_key), (rows(2, "f"), stack.key("ingest"))):
        with stack.client(text_) as holder:
            assert add(holder, name, batch, headers=headers)["accepted"] == 2
    assert len(listed(api, name)) == 4


@pytest.mark.parametrize("operation", ["add_examples", "create_model", "issue_key", "remove_examples"])
def test_requests_at_the_same_time_are_carried_out_once(stack: Stack, api: httpx.Client, operation: str) -> None:
    path, body = REQUESTS[operation](stack, api)
    headers = key()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.post(path, json=body, headers=headers), range(8)))
    assert {answer.status_code for answer in answers} <= {201, 202}
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1


def test_a_new_keys_secret_is_replayed_but_not_stored(stack: Stack, api: httpx.Client) -> None:
    headers, body = key(), {"name": "secret", "scopes": ["read"]}
    issued = [api.post("/v1/keys", json=body, headers=headers).json()["key"] for _ in range(2)]
    assert issued[0] == issued[1]
    secret = issued[0].split("_", 2)[2].encode()
    with stack.database.read() as session:
        for table in IdempotencyRecord.metadata.sorted_tables:
            for row in session.execute(text(f"SELECT * FROM {table.name}")):
                assert not any(secret in bytes(v) for v in row if isinstance(v, (bytes, memoryview)))
                assert secret.decode() not in str([v for v in row if not isinstance(v, (bytes, memoryview))])


def test_unknown_names_of_a_removal_are_not_stored_in_clear(stack: Stack, api: httpx.Client) -> None:
    body = {"subjects": ["somebody-unknown-to-us"]}
    answer = api.post(f"/v1/models/{stack.model()}/removals", json=body, headers=key())
    assert answer.json()["unknown"] == body["subjects"]
    with stack.database.read() as session:
        stored = [bytes(body) for (body,) in session.query(IdempotencyRecord.body)]
    assert all(b"somebody" not in body for body in stored)


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256, "é"], ids=repr)
def test_a_bad_idempotency_key_is_refused(stack: Stack, api: httpx.Client, bad: str) -> None:
    answer = api.post("/v1/models", json=new_model(), headers={b"Idempotency-Key": bad.encode()})
    refused(answer, 422, "idempotency_key_invalid")
