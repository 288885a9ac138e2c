"""A service that is told to stop answers who waits, and ends soon."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stack import Stack


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_long_poll_ends_with_the_service(number: signal.Signals, tmp_path: Path) -> None:
    stack = Stack(tmp_path).start()
    name = stack.model()
    with stack.client() as api, ThreadPoolExecutor(1) as pool:
        row = {"id": "a", "x": [1, 2], "y": 1, "split": "train"}
        api.post(f"/v1/models/{name}/examples", json={"examples": [row]}).raise_for_status()
        job = api.post(f"/v1/models/{name}/adaptations").json()["id"]
        waiting = pool.submit(stack.client().get, f"/v1/jobs/{job}", params={"wait": 60})
        time.sleep(1)
        stack.stop(number)
        answer = waiting.result(timeout=20)
    assert answer.status_code == 200
    assert answer.json()["state"] == "queued"
