"""Jobs as their askers see them: joined, watched, cancelled, deleted with their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select

from core.jobs.tables import Job, Outbox
from core.ledger.tables import Example
from core.models import catalog
from core.versions.history import folder_of
from tests.worker.house import House, fitted, problem

TRAIN = {"split": "train"}
ENDLESS = {"training": {"max_epochs": 30_000, "patience": 100_000}, "architecture": {"kind": "mlp", "hidden": [8]}}
"""A network whose training nobody waits for."""


def trained(house: House, n: int = 200, **spec: Any) -> str:
    name, (x, y) = house.new_model(**spec), problem(n)
    house.add_examples(name, x, y, **TRAIN)
    house.adapted(name)
    return name


def endless(house: House) -> tuple[str, str]:
    """A model and its job, which runs and would go on."""
    name, (x, y) = house.new_model(**ENDLESS), problem(500)
    house.add_examples(name, x, y, **TRAIN)
    job = house.post(f"/v1/models/{name}/adaptations")["id"]
    house.running(job)
    return name, job


def test_many_changes_become_one_job(house: House) -> None:
    name = trained(house)
    with house.worker_held():
        asked = [house.remove(name, [i])["job"] for i in range(20)]
    assert len(set(asked)) == 1
    job = house.ended(asked[0])
    assert (job["from_position"], job["to_position"]) == (200, 220)
    assert len(house.settled(name)) == 2
    x, y = problem(200)
    distance = np.linalg.norm(house.weights(name) - fitted(x[20:], y[20:]))
    assert distance <= house.champion(name)["certificate"]["bound"] + 1e-4


def test_changes_while_a_job_runs_become_one_more(house: House) -> None:
    name, first = endless(house)
    asked = {house.remove(name, [i])["job"] for i in range(20)}
    assert len(asked) == 1
    assert first not in asked
    house.post(f"/v1/jobs/{first}/cancel")
    house.post(f"/v1/jobs/{asked.pop()}/cancel")
    assert len(house.settled(name)) == 2


def test_a_queued_job_is_cancelled_at_once(house: House) -> None:
    name = trained(house)
    before = house.champion(name)
    with house.worker_held():
        job = house.remove(name, range(5))["job"]
        assert house.post(f"/v1/jobs/{job}/cancel")["state"] == "cancelled"
    other = trained(house)  # the workers are back, and have passed it over
    assert house.get(f"/v1/models/{other}")["champion"] == 1
    assert house.get(f"/v1/jobs/{job}")["attempts"] == 0
    assert house.champion(name) == before
    assert house.get(f"/v1/models/{name}")["pending"] == 5
    assert house.adapted(name)["to_position"] == 205


def test_a_running_job_stops_when_cancelled_and_the_model_is_as_before(house: House) -> None:
    name, job = endless(house)
    house.post(f"/v1/jobs/{job}/cancel")
    ended = house.ended(job, seconds=10)
    assert (ended["state"], ended["version"], ended["error"]) == ("cancelled", None, None)
    assert ended["finished_at"] is not None
    assert house.get(f"/v1/models/{name}")["champion"] is None
    assert house.get(f"/v1/models/{name}/versions")["items"] == []
    assert files(house, name) == []


def test_after_a_cancelled_change_the_next_one_starts_from_the_champion(house: House) -> None:
    name = trained(house, training=ENDLESS["training"])
    before = house.champion(name)
    # its steps are slow: an adaptation has a budget, however long a training may be
    large = {"kind": "mlp", "hidden": [2000, 2000]}
    job = house.post(f"/v1/models/{name}/changes", {"architecture": large})["job"]
    house.running(job)
    house.post(f"/v1/jobs/{job}/cancel")
    assert house.ended(job)["state"] == "cancelled"
    assert house.champion(name) == before
    house.ended(house.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "degree": 1}})["job"])
    version = house.champion(name)
    assert (version["kind"], version["parent"], version["position"]) == ("adapted", 1, 202)


def test_progress_moves_forward_in_words(house: House) -> None:
    name, job = endless(house)
    seen: list[dict[str, Any]] = [house.get(f"/v1/jobs/{job}")]

    def moved() -> bool:
        seen.append(house.get(f"/v1/jobs/{job}"))
        return len({now["progress"] for now in seen}) > 2

    house.wait_until(moved, 15)
    shares = [now["progress"] for now in seen]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1
    assert any(word in seen[-1]["message"] for word in ("training: ", "epoch "))
    assert seen[-1]["started_at"] >= seen[-1]["created_at"]
    house.post(f"/v1/jobs/{job}/cancel")
    house.ended(job)


def test_a_model_deleted_while_its_job_runs_leaves_nothing(house: House) -> None:
    name, job = endless(house)
    house.remove(name, [0])  # one more waits
    with house.database.read() as session:
        model_id = catalog.find(session, name, None).id
    with house.client() as client:
        assert client.delete(f"/v1/models/{name}").status_code == 204
        assert client.get(f"/v1/jobs/{job}").status_code == 404

    def let_go() -> bool:
        lines = house.log_lines("worker")
        return any(line.get("job") == job and "deleted" in line["event"] for line in lines)

    house.wait_until(let_go, 15)
    with house.database.read() as session:
        for table in (Job, Example):
            assert session.scalar(select(func.count()).select_from(table).where(table.model_id == model_id)) == 0
        assert session.scalar(select(func.count()).select_from(Outbox)) == 0
    assert not (Path(house.settings.artifacts) / folder_of(model_id)).exists()
    assert house.get(f"/v1/models/{trained(house)}")["champion"] == 1


def test_versions_and_jobs_of_a_model_of_the_same_name_are_its_own(house: House) -> None:
    name = trained(house)
    with house.client() as client:
        client.delete(f"/v1/models/{name}").raise_for_status()
        body = {"name": name, "input": {"kind": "vector", "dim": 4}, "target": {"kind": "binary"}}
        client.post("/v1/models", json=body).raise_for_status()
    x, y = problem(100)
    house.add_examples(name, x, y, **TRAIN)
    job = house.adapted(name)
    assert (job["version"], job["to_position"]) == (1, 100)


def files(house: House, name: str) -> list[Path]:
    """The model's files in the store."""
    with house.database.read() as session:
        folder = Path(house.settings.artifacts) / folder_of(catalog.find(session, name, None).id)
    return list(folder.rglob("*")) if folder.exists() else []


def test_the_store_holds_one_file_for_each_version(house: House) -> None:
    name = trained(house)
    house.ended(house.remove(name, range(5))["job"])
    house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    assert len(files(house, name)) == len(house.get(f"/v1/models/{name}/versions")["items"]) == 3
