"""A restored backup brings nothing back that concerns people: the drill, with `amend backup` and `amend restore`."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import BACKENDS
from tests.endurance.fleet import Fleet
from tests.endurance.many_people import HELD, bodies, crowd, ids_of, left_of, near_without, started
from tests.worker.deployment import DIM, fitted
from tests.worker.erasure_helpers import ask, wait_for_end

pytestmark = pytest.mark.timing

ERASED, OPEN, REMOVED, CORRECTED, REFUSED, APPROVED, LAST = 0, 1, 2, 3, 4, 5, 60
"""Numbers of people, and of those in the model."""


@pytest.fixture(scope="module", params=BACKENDS)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), request.param, AMEND_RETRY_SECONDS="1")
    try:
        yield started(fleet)
    finally:
        fleet.stop()


def amend(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the `amend` command on the fleet's machine."""
    command = [sys.executable, "-P", "-c", "from amend.cli import main; main()", *arguments]
    return subprocess.run(command, env=fleet.complete(), capture_output=True, text=True)


def status(fleet: Fleet, path: str) -> int:
    with fleet.client() as client:
        return client.get(path).status_code


def hold(fleet: Fleet, subject: str) -> str:
    return str(fleet.post("/v1/erasures", {"subject": subject, "hold": True, "reason": "asked by mail"})["id"])


@pytest.mark.both_databases
def test_a_backup_is_restored_and_everything_since_that_concerns_people_is_in_force_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    names, x, y = crowd()
    name, other, backup = fleet.new_model(), fleet.new_model(), tmp_path / "backup"
    fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(LAST))})
    fleet.post(f"/v1/models/{other}/examples", {"examples": bodies(names, x, y, range(3))})
    fleet.adapted(name)
    refused, approved = hold(fleet, names[REFUSED]), hold(fleet, names[APPROVED])
    done = amend(fleet, "backup", str(backup))
    assert done.returncode == 0, done.stderr
    assert "is not empty" in amend(fleet, "backup", str(backup)).stderr

    erased = wait_for_end(fleet, ask(fleet, names[ERASED]))
    held = hold(fleet, names[OPEN])
    extended = fleet.post(f"/v1/erasures/{held}/extend", {"reason": "many systems"})
    removed = ids_of(REMOVED)[:4]
    fleet.post(f"/v1/models/{name}/removals", {"ids": removed})
    new = np.linspace(-1, 1, DIM).astype(np.float32)
    for value in (0.5, 1.0):  # corrected twice
        with fleet.client() as client:
            body = {"x": (value * new).tolist(), "y": 1}
            client.put(f"/v1/models/{name}/examples/{ids_of(CORRECTED)[0]}", json=body).raise_for_status()
    fleet.post(f"/v1/erasures/{refused}/refuse", {"reason": "required by law"})
    fleet.post(f"/v1/erasures/{approved}/approve")
    completed = wait_for_end(fleet, approved)
    with fleet.client() as client:
        client.delete(f"/v1/models/{other}").raise_for_status()
    fleet.settled(name)
    before = fleet.get("/v1/receipts/verify")
    assert before["valid"], before

    running = amend(fleet, "restore", str(backup))
    assert running.returncode == 1
    assert "Stop all processes of Amend first" in running.stderr
    fleet.halt()
    restored = amend(fleet, "restore", str(backup))
    assert restored.returncode == 0, restored.stderr
    for part in ("2 receipts restored", "2 erasures repeated", "4 examples removed", "1 examples corrected"):
        assert part in restored.stdout, restored.stdout
    started(fleet)

    repeated = {row["repeats"]: row for row in fleet.get("/v1/erasures")["items"] if row["repeats"]}
    assert set(repeated) == {erased["id"], completed["id"]}
    for first in (erased, completed):
        assert fleet.get(first["receipt"])["erasure"] == first["id"]
        assert fleet.get(f"/v1/erasures/{first['id']}")["received_at"] == first["received_at"]
        again = wait_for_end(fleet, repeated[first["id"]]["id"])
        assert (again["state"], again["received_at"], again["due_at"]) == (
            "completed",
            first["received_at"],
            first["due_at"],
        )
        assert "replayed" in [event["action"] for event in again["trail"]]
    now_held = fleet.get(f"/v1/erasures/{held}")
    assert (now_held["state"], now_held["due_at"], now_held["extension"]) == (
        "held",
        extended["due_at"],
        "many systems",
    )
    assert fleet.get(f"/v1/erasures/{refused}")["refusal"] == "required by law"
    assert status(fleet, f"/v1/models/{other}") == 404
    path = f"/v1/models/{name}/examples"
    assert [status(fleet, f"{path}/{id}") for id in (*removed, *ids_of(ERASED), *ids_of(OPEN))] == [404] * 24
    assert [status(fleet, f"{path}/{id}") for id in (*ids_of(REMOVED)[4:], *ids_of(REFUSED))] == [200] * 16
    corrected = fleet.get(f"{path}/{ids_of(CORRECTED)[0]}")
    np.testing.assert_allclose(corrected["x"], new, rtol=1e-6)
    fleet.adapted(name)
    check_weights(fleet, name, new)
    after = fleet.get("/v1/receipts/verify")
    assert (after["valid"], after["receipts"], after["strays"]) == (True, before["receipts"] + 2, []), after
    assert left_of(fleet, (ERASED, APPROVED)) == []


def check_weights(fleet: Fleet, name: str, corrected: Any) -> None:
    """Compare the champion with scikit-learn's fit to the examples that must be in force."""
    _, x, y = crowd()
    x, y = x[:LAST, :HELD].copy(), y[:LAST, :HELD].copy()
    x[CORRECTED, 0], y[CORRECTED, 0] = corrected, 1
    used = np.ones(y.shape, bool)
    used[[ERASED, APPROVED, OPEN]] = False
    used[REMOVED, :4] = False
    truth = fitted(x[used].reshape(-1, DIM), y[used])
    bound = (fleet.champion(name)["certificate"] or {}).get("bound") or 0.0
    assert np.linalg.norm(fleet.weights(name) - truth) <= bound + 1e-4


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_jobs_wait_until_a_database_that_was_copied_by_hand_is_replayed(fleet: Fleet, tmp_path: Path) -> None:
    names, x, y = crowd()
    name, home = fleet.new_model(), fleet.folder / "home"
    fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(100, 160))})
    fleet.adapted(name)
    with sqlite3.connect(home / "amend.db") as source, sqlite3.connect(tmp_path / "copy.db") as target:
        source.backup(target)
    erased = wait_for_end(fleet, ask(fleet, names[100]))
    fleet.post(f"/v1/models/{name}/removals", {"ids": ids_of(101)})
    fleet.settled(name)
    fleet.halt()
    for old in home.glob("amend.db*"):
        old.unlink()
    shutil.move(tmp_path / "copy.db", home / "amend.db")

    fleet.start()
    fleet.workers_up(1)
    fleet.add("worker.scheduler")
    job = fleet.post(f"/v1/models/{name}/retrains")["id"]
    fleet.wait_until(lambda: "amend erasures replay" in fleet.get(f"/v1/jobs/{job}")["message"])
    with fleet.client() as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "down")
        assert answer.json()["receipts"]["detail"].startswith("receipts_behind: ")
        assert client.post("/v1/erasures", json={"subject": names[102]}).status_code == 503
    replayed = fleet.post("/v1/erasures/replay")
    assert (replayed["receipts"], len(replayed["erasures"]), replayed["removals"]) == (1, 1, 10)
    fleet.wait_until(fleet.ready)
    assert fleet.ended(job)["state"] == "succeeded"
    assert wait_for_end(fleet, replayed["erasures"][0])["state"] == "completed"
    assert fleet.get(erased["receipt"])["erasure"] == erased["id"]
    fleet.adapted(name)
    assert near_without(fleet, name, 102, 160)
    assert left_of(fleet, (100,)) == []
    again = fleet.post("/v1/erasures/replay")
    assert not any(again.values()), again
