"""The logs of workers and schedulers: they can be read together with the service's, and hold nobody's data."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from tests.endurance.fleet import children
from tests.worker.deployment import Deployment, problem
from tests.worker.test_failures import POISON, store

pytestmark = pytest.mark.timing

REQUEST = "asked-for-by-a-test"


def test_lines_of_a_job_carry_the_id_of_the_request_that_made_it_due(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(100)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    headers = {"X-Request-ID": REQUEST}
    job = deployment.post(f"/v1/models/{name}/removals", {"ids": ["e1"]}, headers=headers)["job"]
    deployment.ended(job)
    deployment.wait_until(
        lambda: len([line for line in deployment.log_lines("worker") if line.get("job") == job]) >= 2, 5
    )
    lines = [line for line in deployment.log_lines("worker") if line.get("job") == job]
    assert [line["event"] for line in lines] == ["job_started", "job_succeeded"]
    assert {line["request_id"] for line in lines} == {REQUEST}
    assert {line["model"] for line in lines} == {name}
    assert any(line.get("request_id") == REQUEST for line in deployment.log_lines("service"))


def test_no_log_holds_values_ids_or_subjects(deployment: Deployment) -> None:
    x = np.array([[7654321.0], [2.5], [1.0], [2.0]], np.float32)
    name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    rows = [
        {"id": f"telltale-{i}", "subject": f"somebody-{i}", "x": a.tolist(), "y": i % 2, "split": "train"}
        for i, a in enumerate(x)
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    store(deployment, name, POISON, np.array([1]), 4, "train")
    assert deployment.adapted(name)["state"] == "failed"
    deployment.post(f"/v1/models/{name}/removals", {"subjects": ["somebody-0"]})
    deployment.post(f"/v1/models/{name}/removals", {"ids": ["e4"]})
    deployment.adapted(name)
    deployment.settled(name)
    for log in deployment.folder.glob("*.log"):
        text = log.read_text()
        for telltale in ("telltale", "somebody", "7654321", "e+37"):
            assert telltale not in text, f"{telltale} in {log.name}"


def test_the_log_of_a_worker_is_json_from_its_first_job_on_even_if_a_child_is_killed(deployment: Deployment) -> None:
    name = deployment.new_model()
    deployment.add_examples(name, *problem(100))
    deployment.adapted(name)
    [child, *_] = children(deployment.workers[0].pid)
    os.kill(child, signal.SIGKILL)
    deployment.wait_until(lambda: any(str(child) in str(line["event"]) for line in deployment.log_lines("worker")))
    lines = (deployment.folder / "worker.log").read_text().splitlines()
    started = next(i for i, line in enumerate(lines) if "job_started" in line)
    assert [line for line in lines[started:] if not line.startswith("{")] == []
