"""The service's log: JSON lines with the ids of requests, and nothing of what callers sent, whatever goes wrong."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from core.tables.jobs import Job
from tests import servers
from tests.conftest import BACKENDS
from tests.servers import PostgresServer
from tests.stack import Stack

pytestmark = pytest.mark.timing

MARK = "Zebra7731"
NUMBER = 7731.5
SPEC = {"target": {"kind": "classes", "values": [MARK, "other"]}, "policy": {"holdout": 0.0}}


class Talk:
    """Requests with ids of their own."""

    def __init__(self, stack: Stack) -> None:
        self.api = stack.client()
        self.sent: list[str] = []
        self.unechoed: list[str] = []

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        request_id = f"request-{len(self.sent)}"
        headers = {"X-Request-ID": request_id, **options.pop("headers", {})}
        answer = self.api.request(method, path, headers=headers, **options)
        self.sent.append(request_id)
        if answer.headers.get("X-Request-ID") != request_id:
            self.unechoed.append(f"{method} {path} {answer.status_code}")
        return answer


class Case:
    """One service of each backend, and what was said to it."""

    def __init__(self, stack: Stack, server: PostgresServer | None) -> None:
        self.stack, self.server, self.talk = stack, server, Talk(stack)
        self.statuses: list[int] = []
        self.lines: list[str] = []
        self.secrets = [MARK, str(NUMBER), stack.admin_key, stack.admin_key.split("_", 2)[2]]


@pytest.fixture(params=BACKENDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """A service that was sent everything below, and its log."""
    server = servers.start_postgres(durable=False) if request.param == "postgresql" else None
    url = server.create_database("logs") if server else ""
    stack = Stack(tmp_path, url, AMEND_LOG_LEVEL="debug", AMEND_DATABASE_TIMEOUT="2")
    try:
        case = Case(stack.start(), server)
        what_succeeds(case)
        what_callers_do_wrong(case)
        what_breaks_off(case)
        what_is_our_fault(case)
        stack.stop()
        case.lines = stack.log.read_text().splitlines()
        yield case
    finally:
        stack.stop()
        if server:
            server.stop()


def what_succeeds(case: Case) -> None:
    model = case.stack.model(**SPEC)
    rows = [{"id": f"{MARK}-{i}", "subject": MARK, "x": [NUMBER, i], "y": [MARK, "other"][i % 2]} for i in range(6)]
    examples, key = f"/v1/models/{model}/examples", {"Idempotency-Key": MARK}
    for _ in range(2):
        assert case.talk("POST", examples, json={"examples": rows}, headers=key).status_code == 201
    assert case.talk("POST", examples, json={"examples": rows}).json()["duplicates"] == 6
    assert case.talk("GET", f"{examples}/{MARK}-1").status_code == 200
    assert case.talk("GET", examples, params={"limit": 2}).status_code == 200
    assert case.stack.train(model) == 1
    assert case.talk("POST", f"/v1/models/{model}/predictions", json={"inputs": [[NUMBER, 1]]}).status_code == 200
    removal = case.talk("POST", f"/v1/models/{model}/removals", json={"ids": [f"{MARK}-1", MARK]})
    assert removal.json()["unknown"] == [MARK]
    assert case.talk("POST", f"/v1/models/{model}/removals", json={"subjects": [MARK]}).json()["removed"] == 5
    new = case.talk("POST", "/v1/keys", json={"name": MARK, "scopes": ["read"]}).json()["key"]
    case.secrets += [new, new.split("_", 2)[2]]
    assert case.talk("GET", "/v1/keys", headers={"Authorization": f"Bearer {new}"}).status_code == 403


def what_callers_do_wrong(case: Case) -> None:
    model = case.stack.model(**SPEC)
    examples = f"/v1/models/{model}/examples"
    good = {"id": MARK, "subject": MARK, "x": [NUMBER, 1], "y": MARK}
    case.talk("POST", examples, json={"examples": [good]})
    refused = [
        case.talk("POST", examples, json={"examples": [{**good, **bad}]})
        for bad in (
            {"x": [NUMBER, 2]},  # a conflict
            {"y": f"{MARK}!"},
            {"x": [NUMBER]},
            {"x": [NUMBER, MARK]},
            {"split": MARK},
            {MARK: NUMBER},
            {"id": f"{MARK}\n"},
            {"subject": MARK * 50},
        )
    ]
    csv = {"Content-Type": "text/csv"}
    refused += [
        case.talk("POST", examples, content=f'{{"examples": {MARK}', headers={"Content-Type": "application/json"}),
        case.talk("POST", examples, content=f"id,y,a,b\n{MARK},{MARK},{MARK},{NUMBER}\n", headers=csv),
        case.talk("POST", examples, content=f"id,y,{MARK}\n{MARK}\n", headers=csv),
        case.talk("POST", examples, content=MARK, headers={"Content-Type": "application/vnd.apache.parquet"}),
        case.talk("POST", examples, content=MARK, headers={"Content-Type": f"text/{MARK}"}),
        case.talk("POST", examples, json={"examples": [good, good]}, headers={"Idempotency-Key": f"{MARK} {MARK}"}),
        case.talk("POST", f"/v1/models/{model}/removals", json={"ids": MARK, MARK: NUMBER}),
        case.talk("GET", f"{examples}/{MARK}-none"),
        case.talk("GET", examples, params={"after": MARK, MARK: MARK}),
        case.talk("GET", f"/v1/{MARK}"),
        case.talk("GET", f"/v1/models/{MARK}"),
        case.talk("GET", f"/v1/jobs/{MARK}"),
        case.talk("PATCH", f"{examples}/{MARK}"),
        case.talk("GET", "/v1/models", headers={"Authorization": f"Bearer {MARK}"}),
        case.talk("GET", "/v1/models", headers={"Authorization": f"Bearer amend_{'0' * 12}_{MARK * 4}"}),
        case.talk("POST", "/v1/models", json={"name": MARK, "input": {"kind": MARK}}),
    ]
    case.statuses += [answer.status_code for answer in refused]
    # an id that is not a plain word is not taken over
    assert case.talk.api.get("/v1/models", headers={"X-Request-ID": f"{MARK} {MARK}"}).headers["X-Request-ID"] != MARK


def what_breaks_off(case: Case) -> None:
    model, key = case.stack.model(**SPEC), case.stack.admin_key
    head = f"POST /v1/models/{model}/examples?{MARK} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {key}\r\n"
    for sent in (
        f"{head}Content-Length: 10000\r\n\r\n" + json.dumps({"examples": [{"id": MARK}]}),
        f"{head}Transfer-Encoding: chunked\r\n\r\nzz{MARK}\r\n",
        f"{MARK} {MARK}\r\n\r\n",
        f"GET /{MARK} HTTP/1.1\r\n{MARK}\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", case.stack.port)) as connection:
            connection.sendall(sent.encode())
            time.sleep(0.1)


def what_is_our_fault(case: Case) -> None:
    """A version file that is broken, and a database that goes away."""
    model = case.stack.model(**SPEC)
    rows = [{"id": f"{MARK}-{i}", "x": [NUMBER, i], "y": [MARK, "other"][i % 2]} for i in range(6)]
    case.talk("POST", f"/v1/models/{model}/examples", json={"examples": rows})
    assert case.stack.train(model) == 1
    for file in Path(case.stack.settings.artifacts).rglob("*.safetensors"):
        file.write_bytes(MARK.encode() * 10)
    broken = case.talk("POST", f"/v1/models/{model}/predictions", json={"inputs": [[NUMBER, 1]]})
    assert broken.status_code >= 500
    case.statuses.append(broken.status_code)

    if case.server:
        case.stack.database.close()
        case.server.stop()
    else:
        with case.stack.database.write() as session:
            session.execute(text("DROP TABLE examples"))
    for answer in (
        case.talk("POST", f"/v1/models/{model}/examples", json={"examples": rows}),
        case.talk("POST", f"/v1/models/{model}/removals", json={"ids": [MARK]}),
        case.talk("GET", f"/v1/models/{model}/examples/{MARK}-1"),
    ):
        assert answer.status_code >= 500
        assert answer.headers["Content-Type"] == "application/problem+json"
        case.statuses.append(answer.status_code)


def test_the_log_has_the_request_and_no_personal_data(case: Case, subtests: pytest.Subtests) -> None:
    with subtests.test("everything that can go wrong went wrong"):
        assert {400, 401, 404, 405, 409, 415, 422} <= set(case.statuses)
        assert {500, 503} & set(case.statuses)

    with subtests.test("nothing that callers sent is in it"):
        for line in case.lines:
            for secret in case.secrets:
                assert secret not in line

    entries = [json.loads(line) for line in case.lines]
    requests = [entry for entry in entries if entry["event"] == "request"]
    with subtests.test("each request has a line with its id"):
        assert all(entry["request_id"] for entry in requests)
        assert set(case.talk.sent) <= {entry["request_id"] for entry in requests}
        assert {"method", "route", "status", "ms"} <= requests[0].keys()

    with subtests.test("an error can be found by the id of its request"):
        assert any("exception" in entry for entry in entries)
        # the outbox sender works for nobody's request
        theirs = [entry for entry in entries if entry["event"] != "outbox_delivery_failed"]
        assert all("request_id" in entry for entry in theirs if "exception" in entry)

    with subtests.test("every answer carries the id of its request"):
        assert case.talk.unechoed == []


def test_the_id_of_a_request_lands_on_the_job_that_it_made_due(stack: Stack, api: httpx.Client) -> None:
    model = stack.model()
    api.post(f"/v1/models/{model}/examples", json={"examples": [{"id": "a", "x": [1, 2], "y": 1, "split": "train"}]})
    answer = api.post(f"/v1/models/{model}/adaptations", headers={"X-Request-ID": "who.asked-1"})
    assert answer.headers["X-Request-ID"] == "who.asked-1"
    with stack.database.read() as session:
        assert session.get_one(Job, answer.json()["id"]).request_id == "who.asked-1"
