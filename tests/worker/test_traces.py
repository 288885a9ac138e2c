"""Traces: one leads from a request through its job to what is published to MLflow."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from core import tracing
from tests.mlflow_server import mlflow_server
from tests.worker.deployment import Deployment, problem

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Receives spans, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Deployment]:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with mlflow_server() as mlflow:
        folder = tmp_path_factory.mktemp("traces")
        deployment = Deployment(folder, "", AMEND_MLFLOW_URL=mlflow.url, **environment)
        try:
            deployment.start()
            for part in ("worker.broker", "worker", "worker.scheduler"):
                deployment.add(part)
            yield deployment
        finally:
            deployment.stop()


def attributes_of(span: Any) -> dict[str, Any]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


def published_jobs(collector: Collector) -> list[Any]:
    """Publications of jobs, not of aliases."""
    return [s for s in collector.named("publish to MLflow") if attributes_of(s)["amend.kind"] == "job"]


def test_one_trace_leads_from_a_request_through_its_job_to_mlflow(deployment: Deployment, collector: Collector) -> None:
    name = deployment.new_model()
    deployment.add_examples(name, *problem(60), subject="Grace Hopper", split="train")
    headers = {"traceparent": CALLER, "X-Request-ID": "of-a-test"}
    job = deployment.request("POST", f"/v1/models/{name}/adaptations", headers=headers)
    assert deployment.ended(job["id"])["state"] == "succeeded"
    deployment.wait_until(lambda: bool(published_jobs(collector)))
    [request] = collector.named("POST /v1/models/{name}/adaptations")
    [adapt] = collector.named("job adapt")
    [published] = published_jobs(collector)
    trace_id = bytes.fromhex(CALLER.split("-")[1])
    assert {request.trace_id, adapt.trace_id, published.trace_id} == {trace_id}
    assert request.parent_span_id == bytes.fromhex(CALLER.split("-")[2])
    assert (adapt.parent_span_id, published.parent_span_id) == (request.span_id, request.span_id)
    assert attributes_of(request)["http.response.status_code"] == 202
    about = {"amend.model": name, "amend.job_id": job["id"], "amend.attempt": 1, "amend.request_id": "of-a-test"}
    assert attributes_of(adapt) == about
    assert len(adapt.events) > 1  # the steps of the job
    deployment.stop()  # exports the rest
    everything = b"".join(span.SerializeToString() for span in collector.spans)
    assert b"Grace" not in everything


def test_spans_of_a_failed_request_have_no_path_and_no_message(tmp_path: Path, collector: Collector) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    deployment = Deployment(tmp_path, "", **environment)
    deployment.start()
    try:
        deployment.connection.get("/v1/models/grace-hopper/examples/grace@example.org")
        route = "GET /v1/models/{name}/examples/{id:path}"
        deployment.wait_until(lambda: bool(collector.named(route)))
        assert b"grace" not in collector.named(route)[0].SerializeToString()
    finally:
        deployment.stop()


def test_processes_export_their_spans_before_they_end(tmp_path: Path, collector: Collector) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    # processes of workers for GPUs end after each task
    deployment = Deployment(tmp_path, "", AMEND_QUEUES="quick-gpu,long-gpu", **environment)
    deployment.start()
    try:
        deployment.add("worker.broker")
        deployment.add("worker")
        name = deployment.new_model(architecture={"kind": "mlp", "hidden": [4]})
        deployment.add_examples(name, *problem(60), split="train")
        headers = {"X-Request-ID": "of-the-end"}
        job = deployment.request("POST", f"/v1/models/{name}/adaptations", headers=headers)
        assert deployment.ended(job["id"])["state"] == "succeeded"

        def spans_of_jobs() -> list[str]:
            return [s.name for s in collector.spans if attributes_of(s).get("amend.model") == name]

        deployment.wait_until(lambda: bool(spans_of_jobs()))
    finally:
        deployment.stop()
    requests = collector.named("POST /v1/models/{name}/adaptations")
    assert "of-the-end" in [attributes_of(span)["amend.request_id"] for span in requests]


def test_without_an_endpoint_nothing_of_opentelemetry_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    with tracing.span("anything") as span:
        assert (span, tracing.traceparent()) == (None, None)
    monkeypatch.setenv(tracing.ENDPOINTS[0], "http://127.0.0.1:1")
    assert tracing.enabled()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not tracing.enabled()
