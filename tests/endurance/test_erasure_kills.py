"""Erasures go on whoever is killed, and whoever is away."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.conftest import BACKENDS
from tests.endurance.fleet import Fleet, children, kill
from tests.endurance.many_people import PEOPLE, bodies, crowd, ids_of, left_of, near_without, started
from tests.endurance.traces import files, found, traces_of
from tests.mlflow_server import PASSWORD, MlflowServer, mlflow_server
from tests.worker.erasure_helpers import wait_for_end

pytestmark = pytest.mark.timing

ASKED = 20


@pytest.fixture(params=BACKENDS)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, request.param, AMEND_MAX_ATTEMPTS="100", AMEND_LEASE_SECONDS="2")
    try:
        yield started(fleet)
    finally:
        fleet.stop()


def asked_until_answered(fleet: Fleet, subject: str) -> str:
    """Ask for an erasure again and again, as a caller would whose connection breaks."""
    while True:
        try:
            answer = httpx.post(
                f"{fleet.url}/v1/erasures",
                json={"subject": subject},
                headers={"Authorization": f"Bearer {fleet.admin_key}"},
                timeout=30,
                verify=False,
            )
            if answer.status_code == 202:
                return str(answer.json()["id"])
        except httpx.HTTPError:
            pass
        if fleet.process is not None and fleet.process.poll() is not None:
            fleet.start_service()
        time.sleep(0.05)


def strike(fleet: Fleet, victim: str) -> None:
    """Kill a part, which is started again, or the processes in which the worker runs jobs, which it starts itself."""
    if victim == "job":
        [worker] = fleet.workers
        fleet.wait_until(lambda: bool(children(worker.pid)))
        for process in children(worker.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    elif victim == "service":
        assert fleet.process is not None
        kill(fleet.process)
        fleet.start_service()
    else:
        [part] = [process for process in fleet.others if fleet.command(victim) == process.args]
        kill(part)
        fleet.others.remove(part)
        fleet.add(victim)


def test_erasures_complete_whichever_process_is_killed(fleet: Fleet) -> None:
    names, x, y = crowd()
    models = [fleet.new_model() for _ in range(2)]
    for name in models:
        fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(PEOPLE))})
        fleet.adapted(name)
    chance, asked, waiting = random.Random(0), list[str](), iter(names[:ASKED])
    victims = ["job"] * 6 + ["worker", "service", "worker.scheduler"]
    chance.shuffle(victims)
    for victim in victims:
        asked += [asked_until_answered(fleet, subject) for subject in islice(waiting, chance.randint(1, 3))]
        time.sleep(chance.uniform(0, 0.4))
        strike(fleet, victim)
    asked += [asked_until_answered(fleet, subject) for subject in waiting]
    last = [wait_for_end(fleet, id, 60) for id in asked]
    assert [erasure for erasure in last if erasure["state"] != "completed"] == []
    receipts = [fleet.get(erasure["receipt"]) for erasure in last]
    assert all(not any(part["checked"].values()) and part["method"] for r in receipts for part in r["models"])
    counts = [(part["examples"], part["deleted"]["examples"]) for r in receipts for part in r["models"]]
    assert counts == [(10, 10)] * len(counts)
    for name in models:
        fleet.settled(name)
        assert near_without(fleet, name, ASKED)
    assert left_of(fleet, range(ASKED)) == []
    chain = fleet.get("/v1/receipts/verify")
    assert (chain["valid"], chain["receipts"]) == (True, ASKED), chain
    fleet.wait_until(lambda: fleet.unreferenced_versions() == set(), 20)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[tuple[Fleet, MlflowServer]]:
    with mlflow_server() as server:
        fleet = Fleet(tmp_path, "sqlite", AMEND_MLFLOW_URL=server.url, AMEND_MLFLOW_PASSWORD=PASSWORD)
        try:
            yield started(fleet), server
        finally:
            fleet.stop()


def test_mlflow_forgets_the_weights_and_keeps_the_run(shown: tuple[Fleet, MlflowServer]) -> None:
    fleet, server = shown
    names, x, y = crowd()
    name = fleet.new_model()
    fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(100))})
    fleet.adapted(name)
    fleet.wait_until(lambda: bool(fleet.version(name, 1)["mlflow"]), 60)
    told = fleet.version(name, 1)["mlflow"]
    weights = fleet.weights(name)
    held = [weights.tobytes(), weights.astype("float32").tobytes()]

    def kept() -> list[Path]:
        found = []
        for path in server.folder.rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):  # the database's journal comes and goes
                content = path.read_bytes()
                found += [path] if any(trace in content for trace in held) else []
        return found

    assert kept(), "MLflow has the weights before"
    server.stop()  # the erasure waits for it, and goes on by itself
    id = asked_until_answered(fleet, names[0])
    fleet.wait_until(lambda: fleet.version(name, 1)["state"] == "purged", 30)
    fleet.wait_for_ticks()
    assert fleet.get(f"/v1/erasures/{id}")["state"] not in ("completed", "failed")
    server.start()
    erasure = wait_for_end(fleet, id)
    assert erasure["state"] == "completed", erasure
    assert kept() == []
    mlflow = httpx.Client(base_url=f"{server.url}/api/2.0/mlflow", auth=("amend", PASSWORD))
    run = mlflow.get("/runs/get", params={"run_id": told["run_id"]}).json()["run"]
    assert run["info"]["lifecycle_stage"] == "active"
    fleet.wait_until(lambda: bool((fleet.champion(name)["mlflow"] or {}).get("version")), 60)

    def alias() -> str | None:
        answer = mlflow.get("/registered-models/get", params={"name": name}).json()
        named = {a["alias"]: a["version"] for a in answer["registered_model"].get("aliases", [])}
        return named.get("champion")

    fleet.wait_until(lambda: alias() == fleet.champion(name)["mlflow"]["version"], 30)
    assert left_of(fleet, [0]) == []
    traces = traces_of(names[0], ids_of(0), x[0], fleet.settings.secret)
    assert found(traces, files(server.folder)) == []
