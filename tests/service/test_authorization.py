"""Scopes of every operation in the OpenAPI document, so that no new endpoint is missed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import Operation, add, operations, refused, rows
from tests.stack import Stack

OPEN = {"health", "readiness", "server_live", "server_ready"}
ENOUGH = {
    "add_examples": {"ingest"},
    "add_labels": {"ingest"},
    "replace_examples": {"ingest"},
    "replace_example": {"ingest"},
    "remove_examples": {"ingest", "erase"},
    "make_predictions": {"read"},
    "infer": {"read"},
    "predict_table": {"read"},
    "infer_with_version": {"read"},
    "download_weights": {"weights"},
    "list_coefficients": {"weights"},
    "export_onnx": {"weights"},
    **dict.fromkeys(("start_analysis", "list_analyses", "show_analysis"), {"analyse"}),
    **dict.fromkeys(("show_head", "show_public_key", "show_proof"), {"read", "ingest", "erase", "weights", "analyse"}),
    **dict.fromkeys(("list_keys", "list_webhooks", "list_deliveries", "list_audit_entries"), set[str]()),
}
"""The scopes besides admin's with which an operation goes; else erase for erasures, read for GET, or none."""


def enough(operation: Operation) -> set[str]:
    if operation.described["tags"] == ["Erasure"]:
        return {"erase"}
    return ENOUGH.get(operation.id, {"read"} if operation.method == "get" else set())


class Place:
    """A model with one of everything, and the values that put an operation there."""

    def __init__(self, stack: Stack, api: httpx.Client) -> None:
        self.model = stack.model()
        add(api, self.model, rows(6))
        stack.train(self.model)
        removal = api.post(f"/v1/models/{self.model}/removals", json={"ids": ["e5"]}).json()
        self.ids = {"examples": "e0", "removals": removal["id"], "jobs": removal["job"], "keys": "none"}

    def path(self, operation: Operation, model: str | None = None) -> str:
        resource = operation.path.partition("/{id}")[0].rpartition("/")[2]
        path = operation.path.replace("{name}", model or self.model).replace("{n}", "1").replace("{number}", "1")
        path = path.replace("{a}", "1").replace("{b}", "1").replace("{kind}", "confirmation")
        path = path.replace("{digest}", f"sha256:{'0' * 64}")
        path = path.replace("{id}", self.ids.get(resource, "none"))
        assert "{" not in path, f"this test does not know how to fill {operation.path}"
        return path

    def body(self, operation: Operation) -> dict[str, Any]:
        content = operation.described.get("requestBody", {}).get("content", {})
        return {"json": {}} if "application/json" in content else {}


@pytest.fixture(scope="module")
def place(stack: Stack) -> Place:
    with stack.client() as api:
        return Place(stack, api)


def guarded(api: httpx.Client) -> list[Operation]:
    found = [operation for operation in operations(api) if operation.id not in OPEN]
    assert len(found) > 20
    return found


def test_health_and_readiness_are_open_and_nothing_else_is(stack: Stack, api: httpx.Client) -> None:
    assert {o.id for o in operations(api) if "security" not in o.described} == OPEN


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer amend_0123456789ab_" + "x" * 43}], ids=["no", "bad"])
@pytest.mark.parametrize("body", [b"", b"{", b"{}"], ids=["empty", "malformed", "invalid"])
def test_without_a_key_every_request_is_refused(
    stack: Stack, api: httpx.Client, place: Place, headers: dict[str, str], body: bytes
) -> None:
    code = "key_unknown" if headers else "key_missing"
    with httpx.Client(base_url=stack.url, headers={"Content-Type": "application/json", **headers}) as stranger:
        for operation in guarded(api):
            answer = stranger.request(operation.method, place.path(operation), content=body)
            assert answer.status_code == 401, operation
            refused(answer, 401, code)


@pytest.mark.parametrize("scope", ["read", "ingest", "erase", "weights", "analyse"])
def test_every_operation_needs_its_scope(stack: Stack, api: httpx.Client, place: Place, scope: str) -> None:
    with stack.client(stack.key(scope)) as holder:
        for operation in guarded(api):
            answer = holder.request(operation.method, place.path(operation), **place.body(operation))
            allowed = scope in enough(operation)
            assert (answer.status_code != 403) == allowed, (operation.id, answer.text)
            if not allowed:
                refused(answer, 403, "scope_missing")
            else:
                assert answer.status_code < 500


def test_a_model_that_the_key_cannot_see_is_not_found(stack: Stack, api: httpx.Client, place: Place) -> None:
    bodies: dict[str, Any] = {
        "change_policy": {"policy": {}},
        "change_model": {"regularizer": {"kind": "l2"}},
        "add_examples": {"examples": rows(1)},
        "add_labels": {"labels": [{"id": "e0", "y": 0}]},
        "replace_examples": {"examples": rows(1)},
        "replace_example": {"x": [0, 0], "y": 0},
        "import_weights": {"weights": [0]},
        "remove_examples": {"ids": ["e0"]},
        "make_predictions": {"inputs": [[0, 0]]},
        "infer": {"inputs": []},
        "predict_table": {},
        "start_analysis": {"kind": "leave_one_out"},
        "accept_returned": {},
        "discard_returned": {},
        "infer_with_version": {"inputs": []},
    }
    with stack.client(stack.key("admin", models=[stack.model()])) as holder:
        for operation in guarded(api):
            if "{name}" in operation.path:
                body = {"json": bodies[operation.id]} if operation.described.get("requestBody") else {}
                answer = holder.request(operation.method, place.path(operation), **body)
                refused(answer, 404, "model_not_found")
            elif operation.path.startswith("/v1/jobs/"):
                refused(holder.request(operation.method, place.path(operation)), 404, "job_not_found")
    assert api.get(f"/v1/models/{place.model}").json()["counts"]["train"] == 5


def test_a_hidden_model_looks_like_one_that_does_not_exist(stack: Stack, api: httpx.Client, place: Place) -> None:
    with stack.client(stack.key("read", models=[stack.model()])) as holder:
        hidden, absent = holder.get(f"/v1/models/{place.model}"), holder.get("/v1/models/none-such")
    assert hidden.json() == absent.json()
