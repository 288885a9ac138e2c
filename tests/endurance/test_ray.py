"""Work on a Ray cluster: the same version as from one process alone, though nodes and drivers are killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from core.jobs.queries import UNFINISHED
from core.kprior import Training, train
from core.ledger import passes
from core.models import catalog
from tests.endurance.fleet import Fleet, Process, kill
from tests.endurance.ray_cluster import RayCluster
from tests.worker.deployment import problem

pytestmark = pytest.mark.timing

DIM, ROWS = 400, 15_000
"""Six shards, each a tenth of a second and more."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("ray"), "postgresql")
    try:
        fleet.start()
        fleet.add("worker.scheduler")
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def cluster(fleet: Fleet) -> Iterator[RayCluster]:
    cluster = RayCluster(fleet.environment, nodes=3)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def model(fleet: Fleet) -> str:
    """A model that one worker has trained and certified without Ray."""
    policy = {"certify": "always", "retrain": {"every": None}, "adapt": {"after_changes": None, "every": None}}
    number = {"input": {"kind": "vector", "dim": DIM}, "target": {"kind": "number"}}
    name = fleet.model(**number, policy={**policy, "memory": {"fraction": 0.01}, "holdout": 0.01})
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    table = {
        "id": [f"e{i}" for i in range(ROWS)],
        "y": x[:, 0] - x[:, 1] + rng.normal(size=ROWS),
        "x": pa.FixedSizeListArray.from_arrays(x.ravel(), DIM),
    }
    batch, sink = pa.record_batch(table), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    with fleet.client() as client:
        sent = client.post(f"/v1/models/{name}/examples", content=sink.getvalue().to_pybytes(), headers=headers)
        sent.raise_for_status()
    worker = fleet.add("worker")
    assert fleet.adapted(name)["state"] == "succeeded"
    kill(worker)
    return name


def add_worker(fleet: Fleet, cluster: RayCluster, **settings: str) -> Process:
    """One that runs passes on Ray, and trains networks by two processes there."""
    ray = {"AMEND_RAY_ADDRESS": cluster.address, "AMEND_RAY_MIN_SECONDS": "0", "AMEND_RAY_PROCESSES": "2"}
    return fleet.add("worker", **{**cluster.token, **ray, "AMEND_RAY_TIMEOUT": "5", **settings})


def ensure_worker(fleet: Fleet, cluster: RayCluster) -> None:
    """At least one such worker, whichever tests ran before."""
    if all(worker.poll() is not None for worker in fleet.workers):
        add_worker(fleet, cluster)


def retrain(fleet: Fleet, name: str) -> str:
    return str(fleet.post(f"/v1/models/{name}/retrains")["id"])


def retrain_on_nodes(fleet: Fleet, cluster: RayCluster, name: str) -> tuple[str, int]:
    """A retrain, and a process that works on it; another retrain if all tasks of one ran on the head node."""
    job, found = retrain(fleet, name), list[int]()

    def seen() -> bool:
        nonlocal job
        found[:] = cluster.tasks()
        if not found and fleet.job(job).state not in UNFINISHED:
            job = retrain(fleet, name)
        return bool(found)

    fleet.wait_until(seen)
    return job, found[0]


def same_again(fleet: Fleet, name: str, job: str, attempts: int) -> None:
    """A retrain gave what the first training gave, to the last bit."""
    ended = fleet.ended(job)
    assert (ended["state"], ended["attempts"]) == ("succeeded", attempts), ended
    first, last = fleet.version(name, 1), fleet.version(name, ended["version"])
    for what in ("sha256", "certificate", "metrics"):
        assert first[what] == last[what]


def messages(fleet: Fleet, job: str) -> Iterator[str]:
    while (shown := fleet.get(f"/v1/jobs/{job}"))["state"] in ("queued", "running"):
        yield shown["message"]


def test_a_retrain_on_three_nodes_of_which_one_is_killed(fleet: Fleet, model: str, cluster: RayCluster) -> None:
    worker = add_worker(fleet, cluster, AMEND_LEASE_SECONDS="3")
    job, task = retrain_on_nodes(fleet, cluster, model)
    cluster.kill_node(task)
    same_again(fleet, model, job, attempts=1)
    assert "ray_task_failed" not in (fleet.folder / "worker.log").read_text()
    kill(worker)


def test_another_worker_takes_over_when_the_driver_is_killed(fleet: Fleet, model: str, cluster: RayCluster) -> None:
    worker = add_worker(fleet, cluster, AMEND_LEASE_SECONDS="3")
    job, _ = retrain_on_nodes(fleet, cluster, model)
    with cluster.paused_tasks():
        fleet.wait_until(lambda: bool(re.search(r"shard \d of 6, on Ray$", fleet.get(f"/v1/jobs/{job}")["message"])))
        kill(worker)
    fleet.wait_until(lambda: cluster.tasks() == [], 30)
    add_worker(fleet, cluster)
    same_again(fleet, model, job, attempts=2)
    assert "ray_task_failed" not in (fleet.folder / "worker.log").read_text()


def test_tasks_end_with_a_job_that_is_cancelled(fleet: Fleet, model: str, cluster: RayCluster) -> None:
    ensure_worker(fleet, cluster)
    job, _ = retrain_on_nodes(fleet, cluster, model)
    fleet.post(f"/v1/jobs/{job}/cancel")
    assert fleet.ended(job)["state"] == "cancelled"
    fleet.wait_until(lambda: cluster.tasks() == [], 10)


def test_a_training_resumes_from_the_last_epoch_when_a_process_is_killed(fleet: Fleet, cluster: RayCluster) -> None:
    ensure_worker(fleet, cluster)
    training = {"max_epochs": 80, "patience": 100_000, "batch_size": 100}
    name = fleet.new_model(architecture={"kind": "mlp", "hidden": [10]}, training=training)
    fleet.add_examples(name, *problem(1000), split="train")
    job = fleet.post(f"/v1/models/{name}/adaptations")["id"]
    fleet.wait_until(lambda: fleet.get(f"/v1/jobs/{job}")["message"].endswith("2 processes on Ray"))
    os.kill(cluster.tasks()[0], signal.SIGKILL)

    ended = fleet.ended(job)
    assert (ended["state"], ended["attempts"]) == ("succeeded", 1), ended
    [again] = re.findall(r'"epoch": (\d+), .*ray_training_restarted', (fleet.folder / "worker.log").read_text())
    assert int(again) > 0
    with fleet.database.read() as session:
        model = catalog.find(session, name, None)
    data = passes.read_in_force(fleet.database, model.id, model.spec, model.head)
    alone = train(model.spec, data, training=Training(**training))
    np.testing.assert_allclose(fleet.weights(name), alone.state.w.numpy(), rtol=1e-3, atol=1e-4)
    assert fleet.champion(name)["cost"]["backward_passes"] == alone.cost.backward_passes
    assert cluster.tasks() == []


def test_a_job_continues_in_process_when_ray_is_lost_and_the_next_one_tries_ray_again(
    fleet: Fleet, model: str, cluster: RayCluster
) -> None:
    ensure_worker(fleet, cluster)
    job, _ = retrain_on_nodes(fleet, cluster, model)
    cluster.kill_head()
    same_again(fleet, model, job, attempts=1)
    log = fleet.folder / "worker.log"
    assert "ray_lost" in log.read_text()

    job = retrain(fleet, model)
    told = set(messages(fleet, job))
    assert any(text.startswith("Waiting for Ray at") for text in told), told
    same_again(fleet, model, job, attempts=1)
    assert "ray_unavailable" in log.read_text()
