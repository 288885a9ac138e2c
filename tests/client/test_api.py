"""The client: what every call carries, what is repeated, and what becomes an error."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from client import api
from client.api import ApiError, Client, UnreachableError, path

URL = "http://amend.test"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("time.sleep", taken.append)
    return taken


def client_of(*answers: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    """A client whose service answers, or breaks, in this order."""
    asked: list[httpx.Request] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client(URL, "amend_1_secret", transport=httpx.MockTransport(handle)), asked


@pytest.mark.parametrize(
    "lost",
    [
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        *map(httpx.Response, (502, 503, 504)),
    ],
    ids=repr,
)
def test_a_lost_post_is_repeated_with_the_same_key_and_body(lost: httpx.Response | Exception) -> None:
    client, asked = client_of(lost, lost, httpx.Response(201, json={"name": "churn"}))
    assert client.post(path("models"), {"name": "churn"}) == {"name": "churn"}
    assert len(asked) == 3
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1
    assert {request.content for request in asked} == {asked[0].content}


def test_pauses_grow() -> None:
    assert list(api.PAUSES) == sorted(set(api.PAUSES))


def test_two_posts_have_two_keys() -> None:
    client, asked = client_of(httpx.Response(200, json={}), httpx.Response(200, json={}))
    client.post("/v1/models")
    client.post("/v1/models")
    assert asked[0].headers["Idempotency-Key"] != asked[1].headers["Idempotency-Key"]


def test_a_service_that_stays_away_is_unreachable(pauses: list[float]) -> None:
    client, asked = client_of(*[httpx.ConnectError("refused")] * 9)
    with pytest.raises(UnreachableError, match=f"{URL}.*refused"):
        client.get("/v1/models")
    assert len(asked) == len(api.PAUSES) + 1
    assert pauses == list(api.PAUSES)


def test_a_gateway_that_stays_in_error_is_an_error() -> None:
    client, _ = client_of(*[httpx.Response(503, text="<html>")] * 9)
    with pytest.raises(ApiError) as caught:
        client.get("/v1/models")
    assert (caught.value.status, caught.value.code) == (503, "http_503")


@pytest.mark.parametrize("status", [400, 409, 422, 500])
def test_a_refusal_is_not_repeated(status: int) -> None:
    client, asked = client_of(httpx.Response(status, json={"code": "no", "detail": "because"}))
    with pytest.raises(ApiError):
        client.post("/v1/models")
    assert len(asked) == 1


def test_a_slow_answer_is_not_asked_for_again() -> None:
    client, asked = client_of(httpx.ReadTimeout("timed out"))
    with pytest.raises(UnreachableError):
        client.post("/v1/models")
    assert len(asked) == 1


def test_error_carries_the_problem() -> None:
    errors = [{"loc": ["examples", 3, "x"], "msg": "has 2 numbers"}]
    problem = {"type": "about:blank", "title": "Bad", "status": 422, "detail": "a bad one", "code": "bad_example"}
    client, _ = client_of(httpx.Response(422, json=problem | {"errors": errors}))
    with pytest.raises(ApiError, match="bad_example: a bad one") as caught:
        client.get("/v1/models")
    error = caught.value
    assert (error.status, error.code, error.detail, error.errors) == (422, "bad_example", "a bad one", errors)


def test_another_server_at_the_address_is_told() -> None:
    client, _ = client_of(httpx.Response(200, text="<html>hello</html>"))
    with pytest.raises(UnreachableError, match="right address"):
        client.get("/v1/models")


@pytest.mark.parametrize("url", ["nonsense", "http://[", "ftp://example.org", "http://a b"])
def test_a_wrong_address_is_unreachable(url: str) -> None:
    with pytest.raises(UnreachableError):
        Client(url, "key").get("/v1/models")


def test_calls_carry_the_key_and_only_the_given_parameters() -> None:
    client, asked = client_of(httpx.Response(200, json={}))
    client.get("/v1/jobs", model="churn", state=None, limit=5)
    assert asked[0].headers["Authorization"] == "Bearer amend_1_secret"
    assert str(asked[0].url) == f"{URL}/v1/jobs?model=churn&limit=5"
    assert "Idempotency-Key" not in asked[0].headers


@pytest.mark.parametrize("call", [lambda c: c.patch("/v1/models/a", {}), lambda c: c.get("/v1/models/a")])
def test_what_may_be_repeated_by_nature_is(call: Callable[[Client], object]) -> None:
    client, asked = client_of(httpx.ReadError("reset"), httpx.Response(200, json={}))
    call(client)
    assert len(asked) == 2


def test_ids_are_quoted_in_paths() -> None:
    client, asked = client_of(httpx.Response(200, json={}))
    client.get(path("models", "churn", "examples", "a/b?c d%"))
    assert asked[0].url.raw_path == b"/v1/models/churn/examples/a%2Fb%3Fc%20d%25"
