"""Unknown query parameters and fields are refused, and cursors reveal nothing about other models."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.service.expect import JSON, add, location, operations, refused, rows
from tests.stack import Stack


def test_every_endpoint_refuses_a_query_that_it_does_not_know(stack: Stack, api: httpx.Client) -> None:
    asked = operations(api)
    assert {"health", "readiness", "show_metrics", "server_live", "infer"} <= {operation.id for operation in asked}
    for operation in asked:
        path = re.sub(r"{[^}]*}", "1", operation.path)
        for _ in range(2):  # the second time as somebody who is known
            answer = api.request(operation.method, path, params={"surprise": "1"})
            assert location(refused(answer, 422, "query_invalid")) == ["query", "surprise"], operation.id


def test_the_known_parameters_are_named(stack: Stack, api: httpx.Client) -> None:
    detail = refused(api.get("/v1/jobs", params={"stat": "failed"}), 422, "query_invalid")["detail"]
    assert "did you mean state? Known parameters: after, kind, limit, model, state" in detail
    assert api.get("/v1/jobs", params={"state": "failed", "limit": 1}).status_code == 200


def test_the_docs_accept_any_query(stack: Stack) -> None:
    for path in ("/docs", "/openapi.json"):
        assert httpx.get(f"{stack.url}{path}?utm_source=mail").status_code == 200


def test_every_endpoint_without_a_body_refuses_what_it_would_not_look_at(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    asked = [one for one in operations(api) if one.method in ("post", "delete") and "requestBody" not in one.described]
    assert {"adapt", "retrain", "hold_model", "promote_version", "cancel_job"} <= {one.id for one in asked}
    for operation in asked:
        path = operation.path.replace("{name}", name)
        answer = api.request(operation.method, re.sub(r"{[^}]*}", "1", path), json={"surprise": 1})
        assert location(refused(answer, 422, "request_invalid")) == ["surprise"], operation.id
    path = f"/v1/models/{name}/hold"
    for body in (b"surprise", b'["surprise"]', b"1"):
        refused(api.post(path, content=body), 422, "request_invalid")
    for i, body in enumerate((b"", b" ", b"{}", b"null")):
        assert api.post(path, content=body, headers={"Idempotency-Key": f"hold-{i}"}).status_code == 200


def test_a_field_that_is_there_twice_is_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    for body, field in (
        ('{"policy": {}, "policy": {"holdout": 0.5}}', "policy"),
        ('{"policy": {"holdout": 0.1, "holdout": 0.5}}', "holdout"),
    ):
        problem = refused(api.patch(f"/v1/models/{name}", content=body, headers=JSON), 422, "request_invalid")
        assert location(problem) == [field]


@pytest.mark.parametrize("path", ["predictions", "examples"])
def test_the_fast_path_refuses_unknown_queries_too(stack: Stack, api: httpx.Client, path: str) -> None:
    name = stack.model()
    for _ in range(3):
        refused(api.post(f"/v1/models/{name}/{path}?dry_run=true", json={"examples": rows(2)}), 422, "query_invalid")
    assert api.get(f"/v1/models/{name}").json()["head"] == 0


def test_a_parameter_that_is_there_twice_is_refused(stack: Stack, api: httpx.Client) -> None:
    refused(api.get("/v1/jobs?limit=1&limit=2"), 422, "query_invalid")


def test_two_keys_in_one_request_are_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    other = stack.key("read", models=[stack.model()])
    body = {"examples": rows(2)}
    add(api, name, rows(1, "known"))  # the key is known by now
    for first, second in ((stack.admin_key, other), (other, stack.admin_key), (stack.admin_key, stack.admin_key)):
        twice = [("Authorization", f"Bearer {first}"), ("authorization", f"Bearer {second}")]
        with httpx.Client(base_url=stack.url, headers=twice, verify=False) as both:
            refused(both.get("/v1/models"), 400, "key_repeated")
            refused(both.post(f"/v1/models/{name}/examples", json=body), 400, "key_repeated")
    assert api.get(f"/v1/models/{name}").json()["head"] == 1


def test_a_cursor_of_another_tenants_job_is_like_one_that_does_not_exist(stack: Stack, api: httpx.Client) -> None:
    mine, theirs = stack.model(), stack.model()
    jobs = {}
    for name in (mine, theirs):
        add(api, name, rows(4))
        jobs[name] = api.post(f"/v1/models/{name}/adaptations").json()["id"]
    with stack.client(stack.key("read", models=[mine])) as tenant:
        foreign = refused(tenant.get("/v1/jobs", params={"after": jobs[theirs]}), 422, "cursor_invalid")
        unknown = refused(tenant.get("/v1/jobs", params={"after": "0" * len(jobs[theirs])}), 422, "cursor_invalid")
        assert foreign == unknown
        assert tenant.get("/v1/jobs", params={"after": jobs[mine]}).json()["items"] == []


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_times_that_no_calendar_has_in_utc_are_refused(stack: Stack, api: httpx.Client, moment: str) -> None:
    name = stack.model()
    for path, parameter in (
        (f"/v1/models/{name}/examples", "since"),
        ("/v1/audit", "since"),
        ("/v1/audit", "until"),
    ):
        problem = refused(api.get(path, params={parameter: moment}), 422, "request_invalid")
        assert location(problem) == ["query", parameter]
