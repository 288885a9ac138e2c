"""Both clients: what every call carries, what is repeated, and what becomes an error."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pandas as pd
import pytest

import amend
from amend import ApiError, AsyncClient, Client, Conflict, Forbidden, Invalid, NotFound, Unavailable, UnreachableError
from amend.errors import FrameInvalid
from amend.requests import path
from tests.amend.clients import Connect

URL = "http://amend.test"
PAUSES = (0.001, 0.002)

Make = Callable[..., tuple[Client, list[httpx.Request]]]


@pytest.fixture
def client_of(connect: Connect) -> Make:
    """A client whose service answers, or breaks, in the order that is given."""

    def made(*answers: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
        asked: list[httpx.Request] = []
        left = list(answers)

        def handle(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            # a new one: each client leaves its mark on those it was given
            return httpx.Response(answer.status_code, content=answer.content)

        return connect(URL, "amend_1_secret", pauses=PAUSES, transport=httpx.MockTransport(handle)), asked

    return made


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
def test_a_lost_post_is_repeated_with_the_same_key_and_body(client_of: Make, lost: httpx.Response | Exception) -> None:
    client, asked = client_of(lost, lost, httpx.Response(201, json={"name": "churn"}))
    assert client.post(path("models"), {"name": "churn"}) == {"name": "churn"}
    assert len(asked) == 3
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1
    assert {request.content for request in asked} == {asked[0].content}


STORED = {"accepted": 3, "duplicates": 0, "first_position": 1, "last_position": 3}
FOUND = {"accepted": 0, "duplicates": 3, "first_position": None, "last_position": None}
EXAMPLES = [{"id": id, "x": [1.0], "y": 1} for id in "abc"]


def test_examples_are_added_without_a_key(client_of: Make) -> None:
    client, asked = client_of(httpx.Response(503), httpx.Response(201, json=STORED))
    client.add_examples("churn", EXAMPLES)
    assert [request.method for request in asked] == ["POST", "POST"]
    assert {request.content for request in asked} == {asked[0].content}
    for request in asked:  # the service's fast path takes no query, no repeated header, and neither of these
        names = [name.lower() for name, _ in request.headers.raw]
        assert len(names) == len(set(names))
        assert {b"idempotency-key", b"content-encoding"}.isdisjoint(names)
        assert request.url.query == b""


@pytest.mark.parametrize("lost", [httpx.ReadError("reset"), httpx.Response(502), httpx.Response(504)], ids=repr)
@pytest.mark.parametrize("then", [[], [httpx.ConnectError("refused")]], ids=["", "restart"])
def test_examples_that_a_lost_attempt_stored_count_as_accepted(
    client_of: Make, lost: httpx.Response | Exception, then: list[httpx.Response | Exception]
) -> None:
    client, _ = client_of(lost, *then, httpx.Response(201, json=FOUND))
    added = client.add_examples("churn", EXAMPLES)
    assert (added.accepted, added.duplicates) == (3, 0)


@pytest.mark.parametrize(
    "refused", [[], [httpx.ConnectError("refused")], [httpx.Response(503)], [httpx.Response(429)]], ids=repr
)
def test_examples_that_were_there_before_are_duplicates(
    client_of: Make, refused: list[httpx.Response | Exception]
) -> None:
    client, _ = client_of(*refused, httpx.Response(201, json=FOUND))
    added = client.add_examples("churn", EXAMPLES)
    assert (added.accepted, added.duplicates) == (0, 3)


def test_a_batch_that_only_the_retry_stored_keeps_its_counts(client_of: Make) -> None:
    client, _ = client_of(
        httpx.ReadError("reset"), httpx.Response(201, json={**STORED, "accepted": 2, "duplicates": 1})
    )
    added = client.add_examples("churn", EXAMPLES)
    assert (added.accepted, added.duplicates, added.last_position) == (2, 1, 3)


def test_two_posts_have_two_keys(client_of: Make) -> None:
    client, asked = client_of(httpx.Response(200, json={}), httpx.Response(200, json={}))
    client.post("/v1/models")
    client.post("/v1/models")
    assert asked[0].headers["Idempotency-Key"] != asked[1].headers["Idempotency-Key"]


def test_a_service_that_stays_away_is_unreachable(client_of: Make) -> None:
    client, asked = client_of(*[httpx.ConnectError("refused")] * 9)
    with pytest.raises(UnreachableError, match=f"{URL}.*refused"):
        client.get("/v1/models")
    assert len(asked) == len(PAUSES) + 1


def test_a_gateway_that_stays_in_error_is_an_error(client_of: Make) -> None:
    client, _ = client_of(*[httpx.Response(503, text="<html>")] * 9)
    with pytest.raises(Unavailable) as caught:
        client.get("/v1/models")
    assert (caught.value.status, caught.value.code) == (503, "http_503")
    assert "not from Amend" in caught.value.detail


@pytest.mark.parametrize(
    ("examples", "error", "says"),
    [
        ("rows.csv", TypeError, "Pass pathlib.Path"),
        (pd.Series([1, 2]), FrameInvalid, "A Series is a single column. Pass a frame"),
    ],
    ids=["a name of a file", "a column"],
)
def test_examples_that_are_no_rows_are_refused_before_they_are_sent(
    client_of: Make, examples: Any, error: type[Exception], says: str
) -> None:
    client, asked = client_of()
    with pytest.raises(error, match=says):
        client.add_examples("churn", examples)
    assert not asked


def test_a_version_is_a_number_or_champion(client_of: Make) -> None:
    client, asked = client_of()
    with pytest.raises(ValueError, match="'champoin' is neither the number of a version nor 'champion'"):
        client.version("churn", "champoin")  # type: ignore[arg-type]
    assert not asked


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Invalid), (403, Forbidden), (404, NotFound), (409, Conflict), (422, Invalid), (500, ApiError)],
)
def test_a_refusal_is_not_repeated(client_of: Make, status: int, kind: type[ApiError]) -> None:
    client, asked = client_of(httpx.Response(status, json={"code": "no", "detail": "because"}))
    with pytest.raises(ApiError) as caught:
        client.post("/v1/models")
    assert type(caught.value) is kind
    assert len(asked) == 1


def test_a_request_beyond_a_quota_is_not_repeated(client_of: Make) -> None:
    problem = {"code": "quota_exceeded", "detail": "until tomorrow"}
    client, asked = client_of(httpx.Response(429, json=problem, headers={"Retry-After": "40000"}))
    with pytest.raises(ApiError, match="until tomorrow"):
        client.post("/v1/models")
    assert len(asked) == 1


def test_a_request_that_times_out_is_not_retried(client_of: Make) -> None:
    client, asked = client_of(httpx.ReadTimeout("timed out"))
    with pytest.raises(UnreachableError):
        client.post("/v1/models")
    assert len(asked) == 1


def test_error_carries_the_problem(client_of: Make) -> None:
    errors = [{"loc": ["examples", 3, "x"], "msg": "has 2 numbers"}]
    problem = {"type": "about:blank", "title": "Bad", "status": 422, "detail": "a bad one", "code": "bad_example"}
    client, _ = client_of(httpx.Response(422, json=problem | {"errors": errors}))
    with pytest.raises(ApiError, match="bad_example: a bad one") as caught:
        client.get("/v1/models")
    error = caught.value
    assert (error.status, error.code, error.detail, error.errors) == (422, "bad_example", "a bad one", errors)


@pytest.mark.parametrize("answer", [{"text": "<html>hello</html>"}, {"json": {"name": "churn"}}, {"content": b"\xff"}])
def test_the_response_of_another_server_is_reported(client_of: Make, answer: dict[str, Any]) -> None:
    client, _ = client_of(httpx.Response(200, **answer))
    with pytest.raises(UnreachableError, match="Is this an Amend server"):
        client.model("churn")


def test_unknown_fields_of_a_response_are_ignored(client_of: Make) -> None:
    newer = {"position": 9, "job": "j1", "why": {"a": ["new", "field"]}}
    client, _ = client_of(httpx.Response(202, json=newer))
    changed = client.change_model("churn", regularizer={"kind": "l2", "delta": 2.0})
    assert (changed.position, changed.job) == (9, "j1")


@pytest.mark.parametrize("url", ["http://[", "ftp://example.org", "http://a b"])
def test_a_wrong_address_is_unreachable(connect: Connect, url: str) -> None:
    with pytest.raises(UnreachableError):
        connect(url, "key").get("/v1/models")


def test_calls_carry_the_key_and_only_the_given_parameters(client_of: Make) -> None:
    client, asked = client_of(httpx.Response(200, json={}))
    client.get("/v1/jobs", model="churn", state=None, limit=5)
    assert asked[0].headers["Authorization"] == "Bearer amend_1_secret"
    assert str(asked[0].url) == f"{URL}/v1/jobs?model=churn&limit=5"
    assert "Idempotency-Key" not in asked[0].headers


def test_jobs_are_listed_by_model_state_and_kind(client_of: Make) -> None:
    client, asked = client_of(httpx.Response(200, json={"items": [], "next": None}))
    assert list(client.jobs(model="churn", state="failed", kind="retrain")) == []
    assert dict(asked[0].url.params) == {"model": "churn", "state": "failed", "kind": "retrain"}


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.patch("/v1/models/a", {}),
        lambda c: c.get("/v1/models/a"),
        lambda c: c.post("/v1/models/a/predictions", {"inputs": [[1]]}),
    ],
)
def test_requests_that_are_idempotent_anyway_are_retried_without_a_key(
    client_of: Make, call: Callable[[Client], object]
) -> None:
    client, asked = client_of(httpx.ReadError("reset"), httpx.Response(200, json={}))
    call(client)
    assert len(asked) == 2
    assert "Idempotency-Key" not in asked[1].headers


def test_a_404_after_a_lost_delete_is_success(client_of: Make) -> None:
    gone = httpx.Response(404, json={"code": "model_not_found", "detail": "This model does not exist."})
    client, _ = client_of(httpx.ReadError("reset"), gone)
    client.delete_model("churn")
    client, _ = client_of(httpx.ConnectError("refused"), gone)
    with pytest.raises(NotFound):
        client.delete_model("churn")


def test_ids_are_quoted_in_paths(client_of: Make) -> None:
    client, asked = client_of(httpx.Response(200, json={}))
    client.get(path("models", "churn", "examples", "a/b?c d%"))
    assert asked[0].url.raw_path == b"/v1/models/churn/examples/a%2Fb%3Fc%20d%25"


def test_a_list_is_walked_page_by_page(client_of: Make) -> None:
    key: dict[str, Any] = {"id": "k1", "name": "n", "scopes": [], "models": None, "created_at": "2026-01-01T00:00:00Z"}
    key |= {"last_used_at": None, "expires_at": None, "person": False, "quota": None}
    pages = [{"items": [key, key], "next": "k2"}, {"items": [key], "next": None}]
    client, asked = client_of(*(httpx.Response(200, json=page) for page in pages))
    keys = client.keys()
    assert next(keys).name == "n"
    assert len(asked) == 1
    assert len(list(keys)) == 2
    assert [request.url.query for request in asked] == [b"", b"after=k2"]


def test_optional_packages_are_not_imported_at_start() -> None:
    code = "import sys, amend; sys.exit(bool({'torch', 'numpy', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_errors_have_one_base_class() -> None:
    errors = [thing for thing in vars(amend).values() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert all(issubclass(error, amend.AmendError) for error in errors)


def test_operations_have_the_signature_that_callers_see() -> None:
    with Client(URL, "amend_1_secret") as client:
        assert str(inspect.signature(client.adapt)) == "(model: 'str') -> 'responses.Job'"
        assert str(inspect.signature(client.models)) == "() -> 'Listing[responses.Model]'"
        assert client.adapt.__doc__ == Client.adapt.__doc__ == Client.adapt.make.__doc__
    awaited = AsyncClient(URL, "amend_1_secret")
    assert str(inspect.signature(awaited.models)) == "() -> 'AsyncListing[responses.Model]'"
    shown = pydoc.plain(pydoc.render_doc(Client))
    assert " adapt(self, model: 'str') -> 'responses.Job'" in shown
    assert "Adapt the model to all changes so far." in shown
    assert "(...)" not in shown
    assert "Flow[" not in shown.split("run(self, flow")[0]


def test_an_operation_can_be_called_on_the_class() -> None:
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={"path": request.url.path}))
    with Client(URL, "amend_1_secret", transport=answer) as client:
        assert Client.get(client, "/v1/models") == {"path": "/v1/models"}
