"""What operations take: one id where they take several, an object where they take its id, no job where none is due."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from amend import Client, ErasureFailed
from amend.responses import Erasure, Job
from tests.amend.clients import Connect
from tests.amend.commands.responses import AT, MODEL, erasure, job

Make = Callable[[Any], tuple[Client, list[httpx.Request]]]

REMOVED = {"id": "r1", "removed": 1, "unknown": [], "position": 2, "job": None}
KEY: dict[str, Any] = {"id": "k1", "name": "n", "key": "amend_k1_secret", "scopes": ["read"], "models": ["churn"]}
KEY |= {"created_at": AT, "last_used_at": None, "expires_at": None, "person": False, "quota": None}


@pytest.fixture
def client_of(connect: Connect) -> Make:
    """A client whose service gives one answer to everything."""

    def made(answer: Any) -> tuple[Client, list[httpx.Request]]:
        asked: list[httpx.Request] = []

        def handle(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            return httpx.Response(200, json=answer)

        return connect("http://amend.test", "amend_1_secret", transport=httpx.MockTransport(handle)), asked

    return made


@pytest.mark.parametrize(
    ("call", "answer", "body"),
    [
        (lambda c: c.remove_examples("visits", "12"), REMOVED, {"ids": ["12"]}),
        (lambda c: c.remove_examples("visits", subjects="s4"), REMOVED, {"subjects": ["s4"]}),
        (lambda c: c.remove_examples("visits", source="monday"), REMOVED, {"source": "monday"}),
        (lambda c: c.remove_examples("visits", positions=(11, 20)), REMOVED, {"positions": [11, 20]}),
        (lambda c: c.remove_examples("visits", (i for i in "12")), REMOVED, {"ids": ["1", "2"]}),
        (lambda c: c.erase_all("zz"), {"items": []}, {"requests": [{"subject": "zz"}]}),
        (lambda c: c.create_key("n", "read", "churn"), KEY, {"name": "n", "scopes": ["read"], "models": ["churn"]}),
    ],
    ids=["ids", "subjects", "source", "positions", "several", "erase_all", "create_key"],
)
def test_arguments_become_the_body_of_a_request(
    client_of: Make, call: Callable[[Client], object], answer: Any, body: Any
) -> None:
    client, asked = client_of(answer)
    call(client)
    assert [json.loads(request.content) for request in asked] == [body]


def test_an_erasure_that_is_held_is_not_waited_for(client_of: Make) -> None:
    client, asked = client_of(erasure("held"))
    with pytest.raises(ErasureFailed, match="Erasure e1 is held until it is approved") as caught:
        client.wait_for_erasure("e1")
    assert (caught.value.erasure.state, len(asked)) == ("held", 1)


def test_no_job_is_nothing_to_wait_for(client_of: Make) -> None:
    client, asked = client_of({**MODEL, "job": None})
    waited: Job | None = client.wait(client.resume("churn").job)
    assert waited is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda c, e: c.erasure(e), "erasures/e1"),
        (lambda c, e: c.approve_erasure(e), "erasures/e1/approve"),
        (lambda c, e: c.refuse_erasure(e, "kept by law"), "erasures/e1/refuse"),
        (lambda c, e: c.extend_erasure(e, "many requests"), "erasures/e1/extend"),
        (lambda c, e: c.retry_erasure(e), "erasures/e1/retry"),
    ],
)
def test_an_erasure_is_named_by_itself_or_its_id(
    client_of: Make, call: Callable[[Client, Erasure | str], Erasure], path: str
) -> None:
    client, asked = client_of(erasure("failed"))
    call(client, call(client, "e1"))
    assert [request.url.path for request in asked] == [f"/v1/{path}"] * 2


@pytest.mark.parametrize(
    ("call", "path"), [(lambda c, j: c.job(j), "jobs/j1"), (lambda c, j: c.cancel(j), "jobs/j1/cancel")]
)
def test_a_job_is_named_by_itself_or_its_id(
    client_of: Make, call: Callable[[Client, Job | str], Job], path: str
) -> None:
    client, asked = client_of(job("running"))
    call(client, call(client, "j1"))
    assert [request.url.path for request in asked] == [f"/v1/{path}"] * 2
