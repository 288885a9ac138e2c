"""The scenarios that the limits of the gate and of the alarm were chosen for, through REST.

Each model learns 22 000 examples, 2000 of them in the holdout, and then ten batches that are as ordinary, drifting or
poisoned as the scenario says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from bench.contestants import CONTENT_TYPES
from tests.worker.deployment import Deployment, Numbers

DIM, FIRST, BATCHES = 12, 22_000, 10


class Outcome(NamedTuple):
    """What became of a model: batches that were rejected, batches with an alarm, and how much worse the served model
    predicts the world as it was at first."""

    rejected: list[int]
    alarms: list[int]
    worse_by: float


class World:
    """Rows of a logistic model whose inputs, concept or labels can change."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.w = self.rng.normal(size=DIM) / 2

    def rows(self, n: int, mean: float = 0.0, tilt: float = 0.0, flip: float = 0.0) -> tuple[Numbers, Numbers]:
        x = self.rng.normal(size=(n, DIM)).astype(np.float32)
        x[:, :3] += mean
        y = (self.rng.random(n) < 1 / (1 + np.exp(-(x @ self.w + tilt * x[:, 4])))).astype(int)
        return x, np.where(self.rng.random(n) < flip, 1 - y, y)


def live_through(deployment: Deployment, batch: Callable[[World, int], tuple[Numbers, Numbers]]) -> Outcome:
    world = World(3)
    name = deployment.new_model(input={"kind": "vector", "dim": DIM})
    test, truth = world.rows(20_000)

    def loss() -> float:
        weights = deployment.weights(name)
        f = test @ weights[:-1] + weights[-1]
        return float(np.logaddexp(0, np.where(truth == 1, -f, f)).mean())

    def send(day: int, x: Numbers, y: Numbers) -> int:
        split = np.where(np.arange(len(x)) % (11 if day < 0 else 10) == 0, "holdout", "train")
        ids = [f"d{day}-{i}" for i in range(len(x))]
        vectors = pa.FixedSizeListArray.from_arrays(x.ravel(), DIM)
        rows = pa.record_batch({"id": ids, "y": y, "x": vectors, "split": pa.array(split)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        body = sink.getvalue().to_pybytes()
        headers = {"Content-Type": CONTENT_TYPES["Arrow"]}
        deployment.request("POST", f"/v1/models/{name}/examples", content=body, headers=headers)
        return int(deployment.adapted(name)["version"])

    send(-1, *world.rows(FIRST))
    clean = loss()
    versions = [send(day, *batch(world, day)) for day in range(BATCHES)]
    states = {v["version"]: v["state"] for v in deployment.get(f"/v1/models/{name}/versions?limit=100")["items"]}
    windows = deployment.get(f"/v1/models/{name}/quality?window=job")["items"]
    return Outcome(
        [day for day, version in enumerate(versions) if states[version] == "rejected"],
        [day for day, window in enumerate(windows) if window["alarm"]],
        loss() / clean - 1,
    )


@pytest.mark.both_databases
def test_a_poisoned_batch_is_rejected_and_ordinary_batches_go_on(deployment: Deployment) -> None:
    found = live_through(deployment, lambda world, day: world.rows(15_000 if day == 4 else 600, flip=day == 4))
    assert (found.rejected, found.alarms) == ([4], [4])
    assert found.worse_by < 0.01


@pytest.mark.both_databases
def test_poison_in_many_batches_is_stopped_before_it_costs_more_than_the_limit(deployment: Deployment) -> None:
    found = live_through(deployment, lambda world, day: world.rows(1500, flip=1.0))
    assert found.rejected == list(range(found.rejected[0], BATCHES))  # once stopped, it stays stopped
    assert found.worse_by < 0.05


@pytest.mark.both_databases
@pytest.mark.parametrize("scenario", ["ordinary", "inputs", "concept", "sudden", "large", "source"])
def test_drift_is_promoted(deployment: Deployment, scenario: str) -> None:
    def batch(world: World, day: int) -> tuple[Numbers, Numbers]:
        match scenario:
            case "inputs":
                return world.rows(600, mean=0.15 * day)
            case "concept":
                return world.rows(600, tilt=0.1 * day)
            case "sudden":
                return world.rows(600, tilt=1.5 if day >= 4 else 0)
            case "large":
                return world.rows(10_000 if day == 4 else 600, tilt=1.5 if day >= 4 else 0)
            case "source":
                return world.rows(200, mean=2.0) if day == 4 else world.rows(600)
            case _:
                return world.rows(600)

    found = live_through(deployment, batch)
    assert found.rejected == []
    if scenario in ("ordinary", "inputs", "concept"):
        assert found.alarms == []


@pytest.mark.both_databases
def test_a_third_of_flipped_labels_raises_an_alarm(deployment: Deployment) -> None:
    found = live_through(deployment, lambda world, day: world.rows(600, flip=0.33 if day == 4 else 0))
    assert (found.alarms, found.rejected) == ([4], [])
