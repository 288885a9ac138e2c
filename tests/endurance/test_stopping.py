"""A service that is told to stop answers who waits, and ends soon."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path

import pytest

from tests.stack import Stack

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_long_poll_ends_with_the_service(number: signal.Signals, tmp_path: Path) -> None:
    stack = Stack(tmp_path).start()
    name = stack.model()
    with stack.client() as api:
        row = {"id": "a", "x": [1, 2], "y": 1, "split": "train"}
        api.post(f"/v1/models/{name}/examples", json={"examples": [row]}).raise_for_status()
        job = api.post(f"/v1/models/{name}/adaptations").json()["id"]
        waiting = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=20)
        waiting.request("GET", f"/v1/jobs/{job}?wait=60", headers={"Authorization": f"Bearer {stack.admin_key}"})
        for _ in range(3):  # requests that arrive later are answered, so the service is handling that one
            api.get("/v1/models").raise_for_status()
    stack.stop(number)
    with waiting.getresponse() as answer:
        assert answer.status == 200
        assert json.loads(answer.read())["state"] == "queued"
