"""The rate limit of a key."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from amend import Client
from core.errors import TooMany
from service.http import rate_limit
from service.http.rate_limit import BURST_SECONDS, RateLimit
from tests.service.expect import refused
from tests.stack import Stack

RATE = 2.0


def test_a_key_is_held_to_its_rate_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 100.0
    monkeypatch.setattr(rate_limit.time, "monotonic", lambda: moment)
    limit = RateLimit(RATE)
    for moment, count in ((100.0, RATE * BURST_SECONDS), (100.4, 0), (101.2, 2), (130.0, RATE * BURST_SECONDS)):  # noqa: B007
        for _ in range(int(count)):
            limit.admit("a")
        with pytest.raises(TooMany) as refusal:
            limit.admit("a")
        assert refusal.value.seconds == 1
    limit.admit("b")  # another key has a rate of its own


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("uptime", [0.1, 1234.567, 1e7 + 0.3])
def test_one_request_is_always_admitted_and_any_number_without_a_limit(
    rate: float, uptime: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit.time, "monotonic", lambda: uptime)
    limit = RateLimit(rate)
    limit.admit("a")
    if rate == 0:
        for _ in range(1000):
            limit.admit("a")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("limited"), AMEND_RATE_LIMIT=str(RATE))
    try:
        yield stack.start()
    finally:
        stack.stop()


def exhaust(api: httpx.Client, method: str, path: str) -> httpx.Response:
    for _ in range(int(RATE * BURST_SECONDS) + 20):
        answer = api.request(method, path, json={} if method == "POST" else None)
        if answer.status_code == 429:
            return answer
    raise AssertionError("never too many")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/models/none/predictions")])
def test_a_rate_limited_response_has_retry_after(limited: Stack, method: str, path: str) -> None:
    with limited.client(limited.key("read")) as api, limited.client(limited.key("read")) as other:
        answer = exhaust(api, method, path)
        refused(answer, 429, "rate_limited")
        assert answer.headers["Retry-After"] == "1"
        assert other.get("/v1/models").status_code == 200
        assert api.get("/healthz").status_code == 200


def test_the_client_retries_after_retry_after(limited: Stack) -> None:
    key = limited.key("read")
    with limited.client(key) as api:
        exhaust(api, "GET", "/v1/models")
    with Client(limited.url, key) as client:
        started = time.monotonic()
        assert list(client.models()) == []
        assert time.monotonic() - started >= 0.9
