"""Scopes for requesting, reading and changing erasures."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.service.erasure_helpers import act, open_erasure, show, somebody
from tests.service.expect import refused
from tests.stack import Stack

REQUESTS: list[Callable[[httpx.Client, str], httpx.Response]] = [
    lambda api, id: api.get("/v1/erasures"),
    lambda api, id: api.get(f"/v1/erasures/{id}"),
    lambda api, id: api.get(f"/v1/erasures/{id}/receipt"),
    lambda api, id: api.get("/v1/receipts/verify"),
    lambda api, id: api.get("/v1/receipts"),
    lambda api, id: api.get(f"/v1/erasures/{id}/bundle"),
    lambda api, id: api.post("/v1/erasures", json={"subject": somebody()}),
    lambda api, id: act(api, id, "extend", reason="many"),
    lambda api, id: act(api, id, "retry"),
    lambda api, id: act(api, id, "refuse", reason="no"),
    lambda api, id: api.post("/v1/erasures/retry"),
    lambda api, id: api.post("/v1/erasures/replay"),
]


@pytest.mark.parametrize("scopes", [("read",), ("ingest",), ("read", "ingest")], ids=" ".join)
def test_other_scopes_see_and_change_nothing(stack: Stack, api: httpx.Client, scopes: tuple[str, ...]) -> None:
    erasure = open_erasure(stack, api)
    with stack.client(stack.key(*scopes)) as holder:
        for request in REQUESTS:
            refused(request(holder, erasure["id"]), 403, "scope_missing")
    assert show(api, erasure["id"]) == {**erasure, "acknowledgement": None, "searched": None, "near_matches": None}


@pytest.mark.parametrize("scope", ["erase", "admin"])
def test_a_key_for_some_models_is_not_enough(stack: Stack, api: httpx.Client, scope: str) -> None:
    erasure = open_erasure(stack, api)
    with stack.client(stack.key(scope, models=[erasure["models"][0]["model"]])) as holder:
        for request in REQUESTS:
            refused(request(holder, erasure["id"]), 403, "key_limited")
    assert show(api, erasure["id"]) == {**erasure, "acknowledgement": None, "searched": None, "near_matches": None}


def test_the_scope_erase_is_enough(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    with stack.client(stack.key("erase")) as holder:
        statuses = [request(holder, erasure["id"]).status_code for request in REQUESTS]
    # an open erasure has no receipt, and only a failed one can be retried
    assert statuses == [200, 200, 404, 200, 200, 200, 202, 200, 409, 200, 200, 200]
