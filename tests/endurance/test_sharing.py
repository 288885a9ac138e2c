"""Work that is shared: the same version as from one process alone, though some of them are killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import func, select

from core.kprior import Training, train
from core.ledger import passes
from core.models import catalog
from core.tables.bookkeeping import OrphanFile
from core.tables.jobs import Shard
from tests.endurance.fleet import Fleet, Process, children, gone, kill
from tests.worker.deployment import problem

DIM, ROWS = 400, 15_000
"""Six shards, each a tenth of a second and more."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """On PostgreSQL and Redis; what takes more than a moment is shared."""
    fleet = Fleet(tmp_path_factory.mktemp("sharing"), "postgresql", AMEND_SHARE_SECONDS="0.1")
    try:
        fleet.start()
        fleet.add("worker.scheduler")
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def model(fleet: Fleet) -> str:
    """A model that one worker alone has trained and certified: there is nobody to share with."""
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
    fleet.workers_up(1)
    assert fleet.adapted(name)["state"] == "succeeded"
    return name


def now_shared(fleet: Fleet) -> list[Shard]:
    with fleet.database.read() as session:
        return list(session.scalars(select(Shard)))


def owner_of(workers: list[Process], owner: str) -> Process:
    """The worker whose process an owner is."""
    [worker] = [worker for worker in workers if int(owner.split(":")[1]) in children(worker.pid)]
    return worker


def caught(fleet: Fleet, workers: list[Process]) -> Process:
    """A helper in the middle of a shard, stopped there."""
    found: list[Process] = []

    def in_the_middle() -> bool:
        for shard in now_shared(fleet):
            if shard.owner in (None, shard.asker) or shard.sha256 is not None:
                continue
            helper = owner_of(workers, shard.owner)
            [child] = children(helper.pid)
            os.kill(child, signal.SIGSTOP)
            if any(each.owner == shard.owner and each.sha256 is None for each in now_shared(fleet)):
                found.append(helper)
                return True
            os.kill(child, signal.SIGCONT)  # too late, this time
        return False

    fleet.wait_until(in_the_middle)
    return found[0]


def same_again(fleet: Fleet, name: str, job: str, attempts: int) -> None:
    """A retrain gave what the first training gave, to the last bit, and left nothing behind."""
    ended = fleet.ended(job)
    assert (ended["state"], ended["attempts"]) == ("succeeded", attempts), ended
    first, last = fleet.version(name, 1), fleet.version(name, ended["version"])
    for what in ("sha256", "certificate", "metrics"):
        assert first[what] == last[what]
    fleet.wait_until(lambda: not fleet.unreferenced(fleet.job(job).model_id) and not now_shared(fleet), 10)
    with fleet.database.read() as session:
        assert session.scalar(select(func.count()).select_from(OrphanFile)) == 0


def messages(fleet: Fleet, job: str) -> Iterator[str]:
    while (shown := fleet.get(f"/v1/jobs/{job}"))["state"] in ("queued", "running"):
        yield shown["message"]


def retrain(fleet: Fleet, name: str) -> str:
    job: dict[str, Any] = fleet.post(f"/v1/models/{name}/retrains")
    return str(job["id"])


def test_a_pass_of_three_workers_of_which_one_is_killed(fleet: Fleet, model: str) -> None:
    workers = fleet.workers_up(3)
    job = retrain(fleet, model)
    kill(caught(fleet, workers))
    told = set(messages(fleet, job))
    assert any(text.endswith("3 workers") for text in told), told
    same_again(fleet, model, job, attempts=1)


def test_a_pass_whose_asker_is_killed(fleet: Fleet, model: str) -> None:
    workers = fleet.workers_up(2)
    job = retrain(fleet, model)
    fleet.wait_until(lambda: any(s.owner not in (None, s.asker) for s in now_shared(fleet)))
    kill(owner_of(workers, now_shared(fleet)[0].asker))
    same_again(fleet, model, job, attempts=2)


def test_a_pass_whose_job_is_cancelled(fleet: Fleet, model: str) -> None:
    fleet.workers_up(2)
    job = retrain(fleet, model)
    fleet.wait_until(lambda: any(s.owner not in (None, s.asker) for s in now_shared(fleet)))
    fleet.post(f"/v1/jobs/{job}/cancel")
    assert fleet.ended(job)["state"] == "cancelled"
    fleet.wait_until(lambda: not fleet.unreferenced(fleet.job(job).model_id) and not now_shared(fleet), 10)


def members_of(child: int) -> list[int]:
    """The processes that train a network for a worker's process."""
    commands = {process: Path(f"/proc/{process}/cmdline").read_bytes() for process in children(child)}
    return [process for process, command in commands.items() if b"worker.training.rank" in command]


def test_a_training_of_two_processes_of_which_one_is_killed(fleet: Fleet) -> None:
    for worker in fleet.workers:
        if worker.poll() is None:
            kill(worker)
    fleet.add("worker", AMEND_TRAINING_PROCESSES="2", AMEND_SHARE_SECONDS="0")
    training = {"max_epochs": 300, "patience": 100_000, "batch_size": 100}
    name = fleet.new_model(architecture={"kind": "mlp", "hidden": [10]}, training=training)
    fleet.add_examples(name, *problem(1000), split="train")
    job = fleet.post(f"/v1/models/{name}/adaptations")["id"]
    child = fleet.runner(job)
    fleet.wait_until(lambda: fleet.get(f"/v1/jobs/{job}")["message"].startswith(("training", "epoch")))
    first, second = members_of(child)
    os.kill(second, signal.SIGKILL)
    fleet.wait_until(lambda: gone(first), 10)

    ended = fleet.ended(job)
    assert (ended["state"], ended["attempts"]) == ("succeeded", 1), ended  # by one process, from the beginning
    assert members_of(child) == []
    with fleet.database.read() as session:
        model = catalog.find(session, name, None)
    data = passes.read_in_force(fleet.database, model.id, model.spec, model.head)
    alone = train(model.spec, data, training=Training(**training))
    np.testing.assert_allclose(fleet.weights(name), alone.state.w.numpy(), rtol=1e-3, atol=1e-4)
    assert fleet.champion(name)["cost"]["backward_passes"] == alone.cost.backward_passes
