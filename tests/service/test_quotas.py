"""Quotas of keys: what goes beyond them is refused and changes nothing."""

from __future__ import annotations

import gzip
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from core.keys import quotas
from core.tables.keys import KeyUsage
from tests.service.expect import refused
from tests.stack import Stack


def limited(stack: Stack, **quota: Any) -> httpx.Client:
    body = {"name": "limited", "scopes": ["admin"], "quota": quota}
    return stack.client(stack.request("POST", "/v1/keys", json=body)["key"])


def examples(count: int) -> list[dict[str, Any]]:
    return [{"id": uuid.uuid4().hex, "x": [0.1, 0.2], "y": 1} for _ in range(count)]


def add(client: httpx.Client, name: str, count: int) -> httpx.Response:
    return client.post(f"/v1/models/{name}/examples", json={"examples": examples(count)})


def count_examples(stack: Stack, name: str) -> int:
    return len(stack.request("GET", f"/v1/models/{name}/examples?limit=1000")["items"])


def test_rows_beyond_the_quota_of_a_day_are_refused(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=10)
    assert add(client, name, 6).status_code == 201
    answer = add(client, name, 5)
    refused(answer, 429, "quota_exceeded")
    assert "of which 4 are left" in answer.json()["detail"]
    assert 0 < int(answer.headers["retry-after"]) <= 86_400
    refused(add(client, name, 11), 413, "quota_exceeded")
    assert add(client, name, 4).status_code == 201
    assert count_examples(stack, name) == 10
    assert add(stack.client(), name, 20).status_code == 201  # another key


def test_recorded_predictions_count_as_examples(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=5)
    stack.post(f"/v1/models/{name}/examples", {"examples": examples(20)})
    stack.train(name)

    def record(first: int, count: int) -> httpx.Response:
        ids = [f"r{first + i}" for i in range(count)]
        body = {"inputs": [[0.1, 0.2]] * count, "record": True, "ids": ids}
        return client.post(f"/v1/models/{name}/predictions", json=body)

    assert record(0, 3).status_code == 200
    refused(record(3, 3), 429, "quota_exceeded")
    refused(add(client, name, 3), 429, "quota_exceeded")
    assert client.post(f"/v1/models/{name}/predictions", json={"inputs": [[0.1, 0.2]] * 9}).status_code == 200
    waiting = stack.get(f"/v1/models/{name}/examples?label=pending")["items"]
    assert len(waiting) == 3


def test_requests_that_fail_do_not_count(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=3)
    [first, *_] = rows = examples(2)
    assert client.post(f"/v1/models/{name}/examples", json={"examples": rows}).status_code == 201
    changed = {"examples": [{**first, "y": 0}]}
    refused(client.post(f"/v1/models/{name}/examples", json=changed), 409, "example_conflict")
    refused(client.post(f"/v1/models/{name}/examples", json={"examples": [{"x": [1]}]}), 422)
    assert client.put(f"/v1/models/{name}/examples", json=changed).status_code == 202
    refused(client.put(f"/v1/models/{name}/examples", json={"examples": [{**first, "y": 1}]}), 429, "quota_exceeded")


def test_a_repeated_request_counts_once_and_gets_the_first_response(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=4)
    body, headers = {"examples": examples(3)}, {"Idempotency-Key": uuid.uuid4().hex}
    path = f"/v1/models/{name}/examples"
    first = client.post(path, json=body, headers=headers)
    second = client.post(path, json=body, headers=headers)
    assert (first.status_code, second.status_code, second.json()) == (201, 201, first.json())
    correction = {"examples": [{**body["examples"][0], "y": 0}]}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    assert [client.put(path, json=correction, headers=headers).status_code for _ in range(2)] == [202, 202]
    refused(add(client, name, 1), 429, "quota_exceeded")


@pytest.mark.both_databases
def test_concurrent_requests_do_not_exceed_a_quota(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=10, models=2)
    spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}

    def create(_: int) -> int:
        return client.post("/v1/models", json={"name": f"m-{uuid.uuid4().hex[:12]}", **spec}).status_code

    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: add(client, name, 2).status_code, range(8)))
        created = list(pool.map(create, range(8)))
    assert sorted(added) == [201] * 5 + [429] * 3
    assert sorted(created) == [201] * 2 + [429] * 6
    assert count_examples(stack, name) == 10


def test_bytes_count_as_decompressed(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, bytes_per_day=300)
    body = httpx.Request("POST", "http://a", json={"examples": examples(2)}).read()
    headers = {"Content-Type": "application/json"}
    path = f"/v1/models/{name}/examples"
    assert client.post(path, content=body, headers=headers).status_code == 201
    packed = {**headers, "Content-Encoding": "gzip"}
    refused(client.post(path, content=gzip.compress(body.replace(b"0.1", b"0.3")), headers=packed), 409)
    more = httpx.Request("POST", "http://a", json={"examples": examples(3)}).read()
    refused(client.post(path, content=gzip.compress(more), headers=packed), 429, "quota_exceeded")
    refused(client.post(path, json={"examples": examples(8)}), 413, "quota_exceeded")


def test_a_new_day_has_a_new_quota(stack: Stack) -> None:
    name, client = stack.model(), limited(stack, rows_per_day=2)
    assert add(client, name, 2).status_code == 201
    refused(add(client, name, 1), 429, "quota_exceeded")
    with stack.database.write() as session:  # as if that had been yesterday
        for usage in session.query(KeyUsage):
            usage.day = "2020-01-01"
    assert add(client, name, 2).status_code == 201


def test_a_key_has_no_more_models_than_its_quota(stack: Stack) -> None:
    client = limited(stack, models=1)
    spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
    first, second = (f"m-{uuid.uuid4().hex[:12]}" for _ in range(2))
    assert client.post("/v1/models", json={"name": first, **spec}).status_code == 201
    answer = client.post("/v1/models", json={"name": second, **spec})
    refused(answer, 429, "quota_exceeded")
    assert "retry-after" not in answer.headers  # waiting does not help
    assert client.delete(f"/v1/models/{first}").status_code == 204
    assert client.post("/v1/models", json={"name": second, **spec}).status_code == 201


def test_a_key_may_have_a_rate_limit_of_its_own(stack: Stack) -> None:
    client = limited(stack, requests_per_second=0.1)
    assert client.get("/v1/models").status_code == 200
    refused(client.get("/v1/models"), 429, "rate_limited")
    assert stack.client().get("/v1/models").status_code == 200


@pytest.mark.parametrize("quota", [{"rows": 3}, {"rows_per_day": 0}, {"models": -1}, {"requests_per_second": 0}])
def test_an_invalid_quota_is_rejected(stack: Stack, quota: dict[str, Any]) -> None:
    body = {"name": "limited", "scopes": ["read"], "quota": quota}
    refused(stack.client().post("/v1/keys", json=body), 422, "request_invalid")


def test_the_seconds_until_tomorrow_are_at_most_a_day() -> None:
    assert 0 < quotas.seconds_until_tomorrow() <= 86_401
