"""MLflow's password: who is let in, and how the others are refused."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from amend.up.mlflow_authentication import REFUSAL, BasicAuthentication

PASSWORD = "with: a colon, and an ü"


async def everything(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """What is guarded."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"all of it"})


def sent(path: str, *authorization: bytes, method: str = "GET", **more: bytes) -> httpx.Response:
    async def ask() -> httpx.Response:
        guarded = httpx.ASGITransport(BasicAuthentication(everything, PASSWORD))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=guarded, base_url="http://mlflow") as client:
            headers = [(b"Authorization", value) for value in authorization]
            named = [(name.encode(), more[name]) for name in more]
            return await client.request(method, path, headers=headers + named)

    return asyncio.run(ask())


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


RIGHT = basic(f"amend:{PASSWORD}")


@pytest.mark.parametrize("header", [RIGHT, b"bAsIc" + RIGHT[5:]])
def test_the_password_grants_access(header: bytes) -> None:
    assert sent("/api/2.0/mlflow/runs/create", header).text == "all of it"


@pytest.mark.parametrize(
    "headers",
    {
        "none": [],
        "empty": [b""],
        "no credentials": [b"Basic"],
        "another password": [basic("amend:guess")],
        "no password": [basic("amend:")],
        "a part of it": [basic(f"amend:{PASSWORD[:-1]}")],
        "another user": [basic(f"admin:{PASSWORD}")],
        "another scheme": [RIGHT.replace(b"Basic", b"Bearer")],
        "no base64": [b"Basic \xff\xfe\x00"],
        "twice": [RIGHT, RIGHT],
    }.items(),
    ids=lambda case: case[0],
)
@pytest.mark.parametrize("path", ["/", "/version", "/health/", "//health", "/api/2.0/mlflow/runs/create"])
def test_all_other_requests_are_refused(path: str, headers: tuple[str, list[bytes]]) -> None:
    answer = sent(path, *headers[1])
    assert (answer.status_code, answer.text) == (401, REFUSAL)
    assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    ("site", "mode", "admitted"),
    [
        ("same-origin", "cors", True),
        ("none", "navigate", True),
        ("cross-site", "navigate", True),
        ("same-site", "cors", False),
        ("cross-site", "no-cors", False),
    ],
)
def test_a_browser_is_not_let_in_for_the_page_of_another_server(site: str, mode: str, admitted: bool) -> None:
    told = {"Sec-Fetch-Site": site.encode(), "Sec-Fetch-Mode": mode.encode()}
    assert sent("/api/2.0/mlflow/runs/create", RIGHT, **told).is_success == admitted


def test_a_form_on_the_page_of_another_server_writes_nothing() -> None:
    told = {"Sec-Fetch-Site": b"same-site", "Sec-Fetch-Mode": b"navigate"}
    assert sent("/ajax-api/2.0/mlflow/upload-artifact", RIGHT, method="POST", **told).status_code == 401


def test_health_is_for_everybody() -> None:
    assert sent("/health").status_code == 200


def test_a_websocket_without_the_password_is_closed() -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    for path in ("/health", "/"):
        scope = {"type": "websocket", "path": path, "headers": []}
        asyncio.run(BasicAuthentication(everything, PASSWORD)(scope, None, send))  # type: ignore[arg-type]
    assert {message["type"] for message in said} == {"websocket.close"}


def test_it_is_not_served_without_a_password(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "amend.up.mlflow_server", str(tmp_path), "0"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "AMEND_MLFLOW_PASSWORD is not set. MLflow is not served without a password.\n",
    )
