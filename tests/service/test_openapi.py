"""The OpenAPI document is complete and correct, and its page works offline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from core.erasure.evidence import Evidence, RowsCommitment
from core.erasure.receipt_content import (
    ComparisonSummary,
    Copy,
    Deleted,
    ErasureReport,
    Familiarity,
    KeptVersions,
    Method,
    ModelReport,
    Outcome,
    TrailEntry,
    VersionFates,
    report_json,
)
from core.kprior import Certificate
from service.erasures.receipt_schema import ReceiptResponse
from tests.service.erasure_helpers import erase_nobody, open_erasure, somebody
from tests.service.expect import METHODS, Operation, add, operations, rows
from tests.stack import Stack


@pytest.fixture
def document(api: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").raise_for_status().json()
    return found


def test_the_document_needs_no_key(stack: Stack) -> None:
    assert httpx.get(f"{stack.url}/openapi.json", timeout=60).json()["info"]["title"] == "Amend"


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in set(references(document)):
        node = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in node, reference
            node = node[step]


def test_every_operation_has_an_id_a_tag_and_a_description(document: dict[str, Any], api: httpx.Client) -> None:
    found = operations(api)
    assert len({operation.id for operation in found}) == len(found)
    for operation in found:
        assert operation.described["tags"], operation.id
        assert operation.described["description"], operation.id


def test_a_receipt_has_the_documented_shape(document: dict[str, Any]) -> None:
    answer = document["paths"]["/v1/erasures/{id}/receipt"]["get"]["responses"]["200"]
    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ReceiptResponse"}
    deleted = Deleted(examples=1, files=2, versions=3, analyses=4)
    fates = VersionFates([1], [KeptVersions([2], "made without this data")])
    outcome = Outcome(Method.ADAPTED, "by adaptation", 3, "abc", Certificate("bound"), ComparisonSummary(0.1), 0.01)
    rest = {"checked": {"examples": 0}, "database": "vacuumed", "caches": "dropped", "kept_until": "2026-01-01"}
    rest["encoder"] = {"kind": "hashing", "trained_on": "other"}
    evidence = Evidence({"family": "bernoulli"}, RowsCommitment(1, "ab"))
    found = {"audit": Familiarity(0.9, 0.5), "deleted": deleted, "versions": fates, "evidence": evidence}
    rest |= {"was_in_use": True, "copies": [Copy("examples_exported", "2026-01-01", "k1", "crm", 1)]}
    model = ModelReport(model="churn", examples=1, outcome=outcome, **found, **rest)
    report = ErasureReport(
        subject_token="token",
        received_at="2026-01-01T00:00:00Z",
        due_at="2026-02-01T00:00:00Z",
        extended=False,
        late=False,
        completed_at="2026-01-01T00:00:01Z",
        trail=[TrailEntry("filed", "k1", "2026-01-01T00:00:00Z")],
        found=1,
        statement="Done.",
        models=[model],
    )
    body = {"number": 1, "erasure": "e", **report_json(report), "leaf": 0, "key_id": "0", "sha256": "1"}
    shape = TypeAdapter(ReceiptResponse)
    shown = shape.dump_python(shape.validate_python(body), mode="json", by_alias=True)
    assert shown == body


def test_every_error_is_problem_json(api: httpx.Client) -> None:
    for operation in operations(api):
        for status, answer in operation.described["responses"].items():
            if status >= "400" and operation.id not in ("readiness", "server_ready"):
                assert list(answer["content"]) == ["application/problem+json"], (operation.id, status)


def test_all_endpoints_of_the_contract_exist(document: dict[str, Any]) -> None:
    promised = """
        POST /v1/models | GET /v1/models | GET /v1/models/{name} | PATCH /v1/models/{name} | DELETE /v1/models/{name}
        POST /v1/models/{name}/examples | GET /v1/models/{name}/examples/{id} | GET /v1/models/{name}/examples
        POST /v1/models/{name}/removals | GET /v1/models/{name}/removals/{id} | POST /v1/models/{name}/changes
        POST /v1/models/{name}/adaptations | POST /v1/models/{name}/retrains | POST /v1/models/{name}/imports
        GET /v1/jobs/{id} | GET /v1/jobs | POST /v1/jobs/{id}/cancel
        GET /v1/models/{name}/versions | GET /v1/models/{name}/versions/{n}
        POST /v1/models/{name}/versions/{n}/promote | GET /v1/models/{name}/promotions
        GET /v1/models/{name}/comparisons | POST /v1/models/{name}/predictions
        GET /v1/models/{name}/versions/{n}/weights | GET /v1/models/{name}/versions/{n}/coefficients
        GET /v1/models/{name}/versions/{n}/onnx | POST /v1/keys | GET /v1/keys | DELETE /v1/keys/{id}
        POST /v1/erasures | GET /v1/erasures | GET /v1/erasures/{id} | POST /v1/erasures/{id}/retry
        POST /v1/erasures/{id}/refuse | GET /v1/erasures/{id}/receipt | GET /v1/receipts/verify
        POST /v1/models/{name}/hold | POST /v1/models/{name}/resume | GET /v1/models/{name}/versions/{a}/compare/{b}
        POST /v1/erasures/{id}/approve | GET /v1/erasures/{id}/refusal | POST /v1/erasures/batch
        POST /v1/subjects/lookup | POST /v1/subjects/export
        POST /v1/encoders | GET /v1/encoders | GET /v1/encoders/{digest} | DELETE /v1/encoders/{digest}
        POST /v1/webhooks | GET /v1/webhooks | DELETE /v1/webhooks/{id} | POST /v1/webhooks/{id}/test
        GET /v1/webhooks/{id}/deliveries
        GET /v2 | GET /v2/health/live | GET /v2/health/ready | GET /v2/models/{name} | GET /v2/models/{name}/ready
        GET /v2/models/{name}/versions/{n} | GET /v2/models/{name}/versions/{n}/ready | POST /v2/models/{name}/infer
        POST /v2/models/{name}/versions/{n}/infer
        GET /healthz | GET /readyz | GET /metrics
        GET /v1/models/{name}/examples/export | POST /v1/models/{name}/predictions/bulk
    """
    there = {f"{m.upper()} {path}" for path, entry in document["paths"].items() for m in METHODS if m in entry}
    assert {" ".join(line.split()) for line in re.split(r"[|\n]", promised) if line.strip()} <= there


def test_the_docs_page_works_offline(stack: Stack) -> None:
    with httpx.Client(base_url=stack.url) as browser:
        page = browser.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+", page.text) == []
        assets = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
        assert len(assets) >= 2
        for asset in assets:
            assert browser.get(asset).status_code == 200, asset


def samples(operation: Operation, document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The bodies that the document shows for an operation, each with its content type."""
    for kind, content in operation.described.get("requestBody", {}).get("content", {}).items():
        if "example" in content:
            yield kind, content["example"]
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for example in schema.get("examples", []):
            yield kind, example


def test_every_documented_example_body_works(stack: Stack, api: httpx.Client, document: dict[str, Any]) -> None:
    """As a reader would try them: create the model, then the rest on it."""
    found = [(o, kind, body) for o in operations(api) for kind, body in samples(o, document)]
    with_body = {o.id for o in operations(api) if "requestBody" in o.described}
    binary = {"predict_table", "upload_encoder"}
    assert {operation.id for operation, _, _ in found} == with_body - binary
    api.delete("/v1/models/churn")
    predicting = ["make_predictions", "infer", "infer_with_version"]
    for operation, kind, body in sorted(found, key=lambda entry: entry[0].id in predicting):
        if operation.id == "make_predictions":
            add(api, "churn", [{**row, "x": [*row["x"], 0]} for row in rows(6)])
            stack.train("churn")
        path = operation.path.replace("{name}", "churn").replace("/examples/{id}", "/examples/a1").replace("{n}", "1")
        if operation.id == "start_analysis":  # of a model that nobody is being erased from
            path = path.replace("churn", name := stack.model())
            add(api, name, rows(6))
            stack.train(name)
        if operation.id == "spell_receipt":
            body = {"subjects": [person := somebody()]}
            path = path.replace("{id}", erase_nobody(api, person)["id"])
        if "/erasures/{id}" in path:
            path = path.replace("{id}", open_erasure(stack, api)["id"])
        if "/restrictions/{id}" in path:
            path = path.replace("{id}", api.post("/v1/restrictions", json={"subject": somebody()}).json()["id"])
        if operation.id == "correct_subject":
            add(api, "churn", [{"id": body["id"], "subject": body["subject"], "x": [0.3, 0.2, 0.1], "y": 0}])
        content = {"json": body} if kind == "application/json" else {"content": body}
        answer = api.request(operation.method, path, headers={"Content-Type": kind}, **content)
        assert answer.is_success, (operation.id, kind, answer.text)
    assert api.delete("/v1/models/churn").status_code == 204


def test_read_only_fields_of_list_items_are_marked(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    marked = {
        name: {field for field, described in schemas[name]["properties"].items() if described.get("readOnly")}
        for name in ("ModelResponse", "ExampleResponse", "JobResponse", "KeyResponse", "VersionResponse")
    }
    assert {"counts", "head", "champion", "pending", "created_at"} <= marked["ModelResponse"]
    assert not {"name", "input", "target", "policy"} & marked["ModelResponse"]
    assert marked["ExampleResponse"] == {"position", "prediction"}
    assert marked["JobResponse"] == schemas["JobResponse"]["properties"].keys()
    assert marked["KeyResponse"] == {"id", "person", "created_at", "last_used_at"}
    assert marked["VersionResponse"] == schemas["VersionResponse"]["properties"].keys()
    for name in ("Page_JobResponse_", "Page_ModelResponse_"):
        assert all(described["readOnly"] for described in schemas[name]["properties"].values())
