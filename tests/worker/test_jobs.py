"""Jobs as their askers see them: joined, watched, cancelled, deleted with their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select

from core.models import catalog
from core.tables.jobs import Job, Outbox
from core.tables.ledger import Example
from core.versions.store import folder_of
from tests.worker.deployment import Deployment, fitted, problem

TRAIN = {"split": "train"}
ENDLESS = {"training": {"max_epochs": 30_000, "patience": 100_000}, "architecture": {"kind": "mlp", "hidden": [8]}}
"""A network whose training nobody waits for."""


def trained(deployment: Deployment, n: int = 200, **spec: Any) -> str:
    name, (x, y) = deployment.new_model(**spec), problem(n)
    deployment.add_examples(name, x, y, **TRAIN)
    deployment.adapted(name)
    return name


def endless(deployment: Deployment) -> tuple[str, str]:
    """A model and its job, which runs and would go on."""
    name, (x, y) = deployment.new_model(**ENDLESS), problem(500)
    deployment.add_examples(name, x, y, **TRAIN)
    job = deployment.post(f"/v1/models/{name}/adaptations")["id"]
    deployment.running(job)
    return name, job


def test_many_changes_become_one_job(deployment: Deployment) -> None:
    name = trained(deployment)
    with deployment.worker_held():
        asked = [deployment.remove(name, [i])["job"] for i in range(20)]
    assert len(set(asked)) == 1
    job = deployment.ended(asked[0])
    assert (job["from_position"], job["to_position"]) == (200, 220)
    assert len(deployment.settled(name)) == 2
    x, y = problem(200)
    distance = np.linalg.norm(deployment.weights(name) - fitted(x[20:], y[20:]))
    assert distance <= deployment.champion(name)["certificate"]["bound"] + 1e-4


def test_changes_while_a_job_runs_become_one_more(deployment: Deployment) -> None:
    name, first = endless(deployment)
    asked = {deployment.remove(name, [i])["job"] for i in range(20)}
    assert len(asked) == 1
    assert first not in asked
    deployment.post(f"/v1/jobs/{first}/cancel")
    deployment.post(f"/v1/jobs/{asked.pop()}/cancel")
    assert len(deployment.settled(name)) == 2


def test_a_queued_job_is_cancelled_at_once(deployment: Deployment) -> None:
    name = trained(deployment)
    before = deployment.champion(name)
    with deployment.worker_held():
        job = deployment.remove(name, range(5))["job"]
        assert deployment.post(f"/v1/jobs/{job}/cancel")["state"] == "cancelled"
    other = trained(deployment)  # the workers are back, and have passed it over
    assert deployment.get(f"/v1/models/{other}")["champion"] == 1
    assert deployment.get(f"/v1/jobs/{job}")["attempts"] == 0
    assert deployment.champion(name) == before
    assert deployment.get(f"/v1/models/{name}")["pending"] == 5
    assert deployment.adapted(name)["to_position"] == 205


def test_a_running_job_stops_when_cancelled_and_the_model_is_as_before(deployment: Deployment) -> None:
    name, job = endless(deployment)
    deployment.post(f"/v1/jobs/{job}/cancel")
    ended = deployment.ended(job, seconds=10)
    assert (ended["state"], ended["version"], ended["error"]) == ("cancelled", None, None)
    assert ended["finished_at"] is not None
    assert deployment.get(f"/v1/models/{name}")["champion"] is None
    assert deployment.get(f"/v1/models/{name}/versions")["items"] == []
    assert files(deployment, name) == []


def test_after_a_cancelled_change_the_next_one_starts_from_the_champion(deployment: Deployment) -> None:
    name = trained(deployment, training=ENDLESS["training"])
    before = deployment.champion(name)
    # its steps are slow: an adaptation has a budget, however long a training may be
    large = {"kind": "mlp", "hidden": [2000, 2000]}
    job = deployment.post(f"/v1/models/{name}/changes", {"architecture": large})["job"]
    deployment.running(job)
    deployment.post(f"/v1/jobs/{job}/cancel")
    assert deployment.ended(job)["state"] == "cancelled"
    assert deployment.champion(name) == before
    deployment.ended(
        deployment.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "degree": 1}})["job"]
    )
    version = deployment.champion(name)
    assert (version["kind"], version["parent"], version["position"]) == ("adapted", 1, 202)


def test_progress_moves_forward_in_words(deployment: Deployment) -> None:
    name, job = endless(deployment)
    seen: list[dict[str, Any]] = [deployment.get(f"/v1/jobs/{job}")]

    def moved() -> bool:
        seen.append(deployment.get(f"/v1/jobs/{job}"))
        return len({now["progress"] for now in seen}) > 2

    deployment.wait_until(moved, 15)
    shares = [now["progress"] for now in seen]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1
    assert any(word in seen[-1]["message"] for word in ("Training: ", "epoch "))
    assert seen[-1]["started_at"] >= seen[-1]["created_at"]
    deployment.post(f"/v1/jobs/{job}/cancel")
    deployment.ended(job)


def test_a_model_deleted_while_its_job_runs_leaves_nothing(deployment: Deployment) -> None:
    name, job = endless(deployment)
    deployment.remove(name, [0])  # one more waits
    with deployment.database.read() as session:
        model_id = catalog.find(session, name, None).id
    with deployment.client() as client:
        assert client.delete(f"/v1/models/{name}").status_code == 204
        assert client.get(f"/v1/jobs/{job}").status_code == 404

    def let_go() -> bool:
        lines = deployment.log_lines("worker")
        return any(line.get("job") == job and line["event"] == "job_lost" for line in lines)

    deployment.wait_until(let_go, 15)
    with deployment.database.read() as session:
        for table in (Job, Example):
            assert session.scalar(select(func.count()).select_from(table).where(table.model_id == model_id)) == 0
        assert session.scalar(select(func.count()).select_from(Outbox)) == 0
    assert not (Path(deployment.settings.artifacts) / folder_of(model_id)).exists()
    assert deployment.get(f"/v1/models/{trained(deployment)}")["champion"] == 1


def test_versions_and_jobs_of_a_model_of_the_same_name_are_its_own(deployment: Deployment) -> None:
    name = trained(deployment)
    with deployment.client() as client:
        client.delete(f"/v1/models/{name}").raise_for_status()
        body = {"name": name, "input": {"kind": "vector", "dim": 4}, "target": {"kind": "binary"}}
        client.post("/v1/models", json=body).raise_for_status()
    x, y = problem(100)
    deployment.add_examples(name, x, y, **TRAIN)
    job = deployment.adapted(name)
    assert (job["version"], job["to_position"]) == (1, 100)


def files(deployment: Deployment, name: str) -> list[Path]:
    """The model's files in the store."""
    with deployment.database.read() as session:
        folder = Path(deployment.settings.artifacts) / folder_of(catalog.find(session, name, None).id)
    return list(folder.rglob("*")) if folder.exists() else []


def test_the_store_holds_one_file_for_each_version(deployment: Deployment) -> None:
    name = trained(deployment)
    deployment.ended(deployment.remove(name, range(5))["job"])
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert len(files(deployment, name)) == len(deployment.get(f"/v1/models/{name}/versions")["items"]) == 3
