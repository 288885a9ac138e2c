"""Health, readiness, request ids, logs, and unknown paths."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import anyio
import httpx
import pytest
from sqlalchemy import delete

from core.clock import now
from core.settings import Settings
from core.tables.jobs import Worker
from service import health
from tests.service.expect import add, refused, rows
from tests.stack import Stack


def test_health_needs_no_key(stack: Stack) -> None:
    answer = httpx.get(f"{stack.url}/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_health_responds_to_head(stack: Stack, path: str) -> None:
    whole, head = httpx.get(stack.url + path), httpx.head(stack.url + path)
    assert head.status_code == whole.status_code
    assert head.content == b""


def test_readiness_names_the_part_that_is_down(stack: Stack) -> None:
    with stack.database.write() as session:
        session.execute(delete(Worker))  # another test may have had one
    answer = httpx.get(f"{stack.url}/readyz")
    assert answer.status_code == 503
    told = answer.json()
    assert told["status"] == "down"
    assert told["database"] == {"ok": True, "detail": "OK"}
    assert told["store"] == {"ok": True, "detail": "OK"}
    assert told["broker"] == {"ok": False, "detail": "unavailable (ConnectionError)"}
    assert told["mlflow"] == {"ok": False, "detail": "not configured"}
    assert told["worker"]["ok"] is False


def test_readiness_does_not_wait_for_a_component_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.1)
    over = threading.Event()
    found = anyio.run(health.check_component, lambda _: str(over.wait(60)), None)
    over.set()
    assert found.ok is False
    assert "no response within" in found.detail


def test_readiness_reports_a_wrong_mlflow_password() -> None:
    asked: list[str | None] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = Settings(mlflow_url=f"http://127.0.0.1:{server.server_port}", mlflow_password="old")
        part = health.run_check(health.check_mlflow, SimpleNamespace(settings=settings))  # type: ignore[arg-type]
        server.shutdown()
    assert (part.ok, part.detail) == (False, "wrong password: check AMEND_MLFLOW_PASSWORD")
    assert asked == [httpx.BasicAuth("amend", "old")._auth_header]


def test_readiness_reads_a_workers_heartbeat(stack: Stack) -> None:
    with stack.database.write() as session:
        session.execute(delete(Worker))
        session.merge(Worker(name="test", seen_at=now()))
    try:
        assert httpx.get(f"{stack.url}/readyz").json()["worker"] == {"ok": True, "detail": "OK"}
        with stack.client() as api:
            stack.wait_until(lambda: "amend_workers 1.0" in api.get("/metrics").text, 10)
    finally:
        with stack.database.write() as session:
            session.delete(session.get_one(Worker, "test"))


def test_metrics_distinguish_files_of_the_docs_from_unknown_paths(stack: Stack, api: httpx.Client) -> None:
    api.get("/openapi.json").raise_for_status()
    api.get("/assets/some/%2e%2e/style.css")  # there are endless ways to write the path of a file
    api.get("/v1/none-such")
    text = api.get("/metrics").text
    assert 'amend_requests_total{method="GET",route="file",status="200"}' in text
    assert "style.css" not in text
    assert 'amend_requests_total{method="GET",route="unknown",status="404"}' in text
    assert 'route="unknown",status="200"' not in text


def test_an_unknown_path_or_method_is_a_problem_too(stack: Stack, api: httpx.Client) -> None:
    refused(api.get("/v1/none-such"), 404, "path_not_found")
    problem = refused(api.get("/v1/models/"), 404, "path_not_found")
    assert problem["detail"].startswith("There is no endpoint /v1/models/. ")
    answer = api.put("/v1/models")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"]


def test_every_answer_has_the_id_of_its_request(stack: Stack, api: httpx.Client) -> None:
    assert api.get("/healthz", headers={"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"
    assert api.get("/v1/models/none-such", headers={"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"
    strange = api.get("/healthz", headers={"X-Request-ID": "a b"}).headers["x-request-id"]
    assert strange not in ("", "a b")


def test_the_log_is_json_without_ids_names_or_keys(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{**row, "subject": "somebody-in-the-log"} for row in rows(2, "private-")])
    api.get(f"/v1/models/{name}/examples/private-0").raise_for_status()
    refused(api.get(f"/v1/models/{name}/examples/private-9"), 404)
    api.post(f"/v1/models/{name}/removals", json={"subjects": ["somebody-in-the-log"]}).raise_for_status()
    log = stack.log.read_text()
    assert "/v1/models/{name}/examples/{id" in log
    for word in ("private-", "somebody-in-the-log", stack.admin_key.split("_", 2)[2]):
        assert word not in log
    assert all(isinstance(json.loads(line), dict) for line in log.splitlines())


def test_the_log_has_the_key_and_the_model_of_a_request(stack: Stack, api: httpx.Client) -> None:
    name, key = stack.model(), stack.admin_key.split("_")[1]
    add(api, name, rows(2))
    add(api, name, rows(2))  # known by now: the fast path
    refused(api.get(f"/v1/models/{name}/versions", params={"limit": 0}), 422)
    refused(api.get("/v1/models/somebodys-name/versions"), 404)
    refused(httpx.get(f"{stack.url}/v1/models/somebodys-name"), 401)
    lines = [json.loads(line) for line in stack.log.read_text().splitlines()]
    ours = [line for line in lines if line.get("model") == name]
    assert [(line["status"], line["key"]) for line in ours] == [(201, key), (201, key), (422, key)]
    assert "somebodys-name" not in stack.log.read_text()
