"""CORS: named origins may call with a key, others may not, and cookies never count."""

from __future__ import annotations

import httpx
import pytest

from tests.service.conftest import ORIGIN
from tests.service.expect import add, rows
from tests.stack import Stack

ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_a_named_origin_may_call(small: Stack) -> None:
    name = small.model()
    path = f"{small.url}/v1/models/{name}/predictions"
    before = httpx.options(path, headers={"Origin": ORIGIN, **ASKED})
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in before.headers["access-control-allow-methods"]
    assert "authorization" in before.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in before.headers
    with small.client() as api:
        add(api, name, rows(4))
        small.train(name)
        for _ in range(2):  # the second time on the quick way
            answer = api.post(path, json={"inputs": [[1, 2]]}, headers={"Origin": ORIGIN})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        assert api.get("/metrics").text.count(f"/v1/models/{name}/predictions") == 0  # as a path that was asked for


def test_an_unknown_origin_may_not_call(small: Stack) -> None:
    path = f"{small.url}/v1/models"
    assert httpx.options(path, headers={"Origin": "https://evil.example", **ASKED}).status_code == 400
    assert "access-control-allow-origin" not in httpx.get(path, headers={"Origin": "https://evil.example"}).headers


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
def test_without_the_setting_no_origin_may_call(stack: Stack) -> None:
    answer = httpx.get(f"{stack.url}/healthz", headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]
