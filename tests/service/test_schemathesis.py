"""Schemathesis compares the running service with its OpenAPI document: every response must be as documented.

Path parameters name a model that exists, so that generated requests get past "not found".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.erasure_helpers import ask, erase_nobody, fail_erasure, open_erasure, somebody
from tests.service.expect import METHODS, add, rows
from tests.stack import Stack

EXAMPLES = os.environ.get("AMEND_TEST_EXAMPLES", "3")
"""Made-up requests of each operation and kind; the environment may ask for a longer search."""
LARGE = ("/v1/models", "/v1/models/{name}/changes", "/v1/models/{name}/analyses")
"""Operations whose bodies have so many parts that systematic requests would be two thirds of all.

They have more made-up requests instead, and both with AMEND_TEST_ALL.
"""
CONFIGURATION = """
[generation]
max-examples = {examples}
"""
LARGE_CONFIGURATION = """
[[operations]]
include-name = "POST {path}"
generation.max-examples = {examples}
phases.coverage.enabled = {coverage}
"""

PROMISED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


def existing(stack: Stack, api: httpx.Client) -> dict[tuple[str, str], list[Any]]:
    """Values of path parameters that lead somewhere, by the path up to the parameter and its name."""
    name, doomed = stack.model(), stack.model()
    add(api, name, rows(6))
    stack.train(name)
    removal = api.post(f"/v1/models/{name}/removals", json={"ids": ["e5"]}).json()
    # an ended job: nobody waits for it
    api.post(f"/v1/jobs/{removal['job']}/cancel").raise_for_status()
    return {
        ("/v1/models/", "name"): [name],
        ("/v1/models/", "doomed"): [doomed],
        ("/v2/models/", "name"): [name],
        ("/v2/models/{name}/versions/", "n"): [1],
        ("/v1/models/{name}/examples/", "id"): ["e0", "a/b"],
        ("/v1/models/{name}/removals/", "id"): [removal["id"]],
        ("/v1/models/{name}/analyses/", "id"): [
            api.post(f"/v1/models/{name}/analyses", json={"kind": "preview", "remove": {"ids": ["e0"]}}).json()["id"]
        ],
        ("/v1/models/{name}/versions/", "n"): [1],
        ("/v1/models/{name}/versions/", "a"): [1],
        ("/v1/models/{name}/versions/{a}/compare/", "b"): [1],
        ("/v1/jobs/", "id"): [removal["job"]],
        ("/v1/erasures/", "id"): [
            open_erasure(stack, api)["id"],
            ask(api, somebody())["id"],
            erase_nobody(api)["id"],
            fail_erasure(stack, api)["id"],
        ],
        ("/v1/receipts/", "number"): [1],
        ("/v1/keys/", "id"): ["none"],
        ("/v1/encoders/", "digest"): [f"sha256:{'0' * 64}"],
        ("/v1/restrictions/", "id"): [api.post("/v1/restrictions", json={"subject": somebody()}).json()["id"]],
        ("/v1/erasures/{id}/letters/", "kind"): ["confirmation"],
        ("/v1/restrictions/{id}/letters/", "kind"): ["restriction"],
        ("/v1/webhooks/", "id"): [
            api.post("/v1/webhooks", json={"url": "https://receiver.example/"}).json()["id"],
        ],
    }


def pinned(document: dict[str, Any], values: dict[tuple[str, str], list[Any]]) -> dict[str, Any]:
    """The document with path parameters that exist."""
    for path, entry in document["paths"].items():
        for method in METHODS:
            for parameter in entry.get(method, {}).get("parameters", []):
                if parameter["in"] == "path":
                    name = parameter["name"]
                    before = path.partition(f"{{{name}}}")[0]
                    key = "doomed" if method == "delete" and name == "name" else name
                    parameter["schema"] = {"enum": values[before, key]}
    return document


@pytest.mark.parametrize("stack", ["postgresql"], indirect=True)  # it refuses more than SQLite does
def test_every_answer_is_as_documented(stack: Stack, api: httpx.Client, tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(pinned(api.get("/openapi.json").json(), existing(stack, api))))
    (tmp_path / "schemathesis.toml").write_text(configuration(int(EXAMPLES), bool(os.environ.get("AMEND_TEST_ALL"))))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", stack.url),
        *("--header", f"Authorization: Bearer {stack.admin_key}"),
        *("--phases", "examples,coverage,fuzzing", "--checks", ",".join(PROMISED), "--continue-on-failure"),
        *("--generation-deterministic", "--no-color"),
        *("--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "30"),
        *("--exclude-path", "/readyz"),  # it rightly says 503: there is no worker here
        # with another method these are /v1/erasures/{id}, and rightly not found
        *("--exclude-path", "/v1/erasures/retry", "--exclude-path", "/v1/erasures/replay"),
        *("--exclude-path", "/v1/erasures/batch"),
        # with PUT this is an example's
        *("--exclude-path", "/v1/models/{name}/examples/export"),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("serializers.py"))}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def configuration(examples: int, everything: bool) -> str:
    """What schemathesis reads from the working directory."""
    large = {"examples": 20 * examples, "coverage": str(everything).lower()}
    parts = [LARGE_CONFIGURATION.format(path=path, **large) for path in LARGE]
    return CONFIGURATION.format(examples=examples) + "".join(parts)
