"""A class that is added to a model, before its first examples or together with them: adapted, certified and judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.deployment import Deployment, Numbers
from tests.worker.sklearn_oracle import fit

CLASSES = ["a", "b", "c", "d"]
DELTA = 5.0


class World:
    """Examples of four classes, the last of which comes later and looks like the others."""

    def __init__(self, dim: int) -> None:
        self.rng = np.random.default_rng(0)
        self.centres = self.rng.normal(size=(4, dim)) / np.sqrt(dim) * 1.5
        self.x, self.y = np.zeros((0, dim), np.float32), np.zeros(0, int)

    def send(self, deployment: Deployment, name: str, counts: list[int], shift: int = 0) -> None:
        """Add examples, a fifth of them to the holdout; `shift` makes their labels wrong."""
        y = self.rng.permutation(np.repeat(np.arange(4), counts))
        x = (self.centres[y] + self.rng.normal(size=(len(y), self.x.shape[1]))).astype(np.float32)
        y = np.where(y < 3, (y + shift) % 3, y)
        first = len(self.x)
        self.x, self.y = np.vstack([self.x, x]), np.concatenate([self.y, y])
        rows = [
            {
                "id": f"e{first + i}",
                "x": x[i].tolist(),
                "y": CLASSES[y[i]],
                "split": "train" if (first + i) % 5 else "holdout",
            }
            for i in range(len(y))
        ]
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})

    def fit(self) -> Numbers:
        """(K, D) scikit-learn's weights for all training examples."""
        train = np.arange(len(self.x)) % 5 > 0
        found: Numbers = fit("classes", self.x[train], self.y[train], DELTA).reshape(4, -1)
        return found


def new_model(deployment: Deployment, world: World, **more: Any) -> str:
    name = deployment.new_model(
        input={"kind": "vector", "dim": world.x.shape[1]},
        target={"kind": "classes", "values": CLASSES[:3]},
        regularizer={"kind": "l2", "delta": DELTA},
        **more,
    )
    world.send(deployment, name, [250, 250, 250, 0])
    deployment.adapted(name)
    return name


def add_class(deployment: Deployment, name: str) -> None:
    deployment.post(f"/v1/models/{name}/changes", {"target": {"kind": "classes", "values": CLASSES}})
    deployment.settled(name)


def is_certified(deployment: Deployment, name: str, world: World) -> bool:
    """Whether the champion was adapted, and is within its bound of scikit-learn's fit."""
    version = deployment.champion(name)
    assert (version["method"], version["gate"]["passed"]) == ("kprior", True), version
    assert version["certificate"]["relative"] <= 0.01
    weights = deployment.weights(name).reshape(4, -1)
    distance = np.linalg.norm(weights - weights.mean(0) - (found := world.fit()) + found.mean(0))
    return bool(distance <= version["certificate"]["bound"] + 1e-4)


@pytest.mark.parametrize("dim", [6, 300], ids=["dense", "wide"])
def test_a_class_is_added_before_its_examples(deployment: Deployment, dim: int) -> None:
    world = World(dim)
    name = new_model(deployment, world, policy={"certify": "always"})
    add_class(deployment, name)
    waiting = deployment.champion(name)
    assert (waiting["version"], waiting["method"]) == (2, "kprior")  # no retrain, which would not have a bound either
    assert waiting["certificate"]["bound"] is None
    answer = deployment.post(f"/v1/models/{name}/predictions", {"inputs": world.x[:1].tolist()})
    assert answer["outputs"][0]["probabilities"]["d"] < 0.01
    # as many examples as of all other classes: they must take probability from them
    world.send(deployment, name, [0, 0, 0, 500])
    assert deployment.adapted(name)["version"] == 3
    assert is_certified(deployment, name, world)
    windows = deployment.get(f"/v1/models/{name}/quality?window=job")["items"]
    assert [window["alarm"] for window in windows] == [False]
    # and the next version is compared with the last confirmed one, which lacks the class
    world.send(deployment, name, [40, 40, 40, 40])
    deployment.adapted(name)
    assert is_certified(deployment, name, world)


def test_a_class_comes_with_its_examples(deployment: Deployment) -> None:
    world = World(300)
    name = new_model(deployment, world)
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/changes", {"target": {"kind": "classes", "values": CLASSES}})
        world.send(deployment, name, [0, 0, 0, 500])
    deployment.adapted(name)
    deployment.settled(name)
    assert is_certified(deployment, name, world)


def test_a_class_may_arrive_in_several_batches(deployment: Deployment) -> None:
    """Each batch takes probability from the other classes, also after the champion has seen the first few examples."""
    world = World(6)
    name = new_model(deployment, world)
    add_class(deployment, name)
    for version, counts in enumerate([[40, 40, 40, 10], [0, 0, 0, 300]], 3):
        world.send(deployment, name, counts)
        deployment.adapted(name)
        champion = deployment.champion(name)
        assert (champion["version"], champion["gate"]["passed"]) == (version, True)
    world.send(deployment, name, [300, 300, 300, 100], shift=1)  # wrong labels of the others are still rejected
    deployment.adapted(name)
    assert deployment.version(name, 5)["state"] == "rejected"


def test_a_label_may_arrive_in_several_batches(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    labels = ["red", "round", "new"]
    name = deployment.new_model(input={"kind": "vector", "dim": 2}, target={"kind": "labels", "values": labels[:2]})

    def send(first: int, count: int, new: float) -> None:
        rows = []
        for i in range(first, first + count):
            x = rng.normal(size=3)
            has = [x[0] > 0, x[1] > 0, x[2] < new]
            y = [label for label, there in zip(labels, has, strict=True) if there]
            split = "train" if i % 5 else "holdout"
            rows.append({"id": f"e{i}", "x": (x[:2] + rng.normal(size=2)).tolist(), "y": y, "split": split})
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
        deployment.adapted(name)

    send(0, 1000, -9)
    deployment.post(f"/v1/models/{name}/changes", {"target": {"kind": "labels", "values": labels}})
    deployment.settled(name)
    send(1000, 150, -1.5)
    send(1150, 600, 1)
    champion = deployment.champion(name)
    assert (champion["version"], champion["gate"]["passed"]) == (4, True)


def test_other_changes_are_reflected_while_a_class_has_no_examples(deployment: Deployment) -> None:
    world = World(300)
    name = new_model(deployment, world)
    add_class(deployment, name)
    gone = [i for i in range(60) if i % 5]
    deployment.remove(name, gone)
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["version"], version["method"]) == (3, "kprior")
    kept = np.array([i for i in range(len(world.x)) if i % 5 and i not in gone])
    truth = fit("classes", world.x[kept], world.y[kept], DELTA).reshape(3, -1)
    weights = deployment.weights(name).reshape(4, -1)[:3]
    assert np.linalg.norm(weights - weights.mean(0) - truth + truth.mean(0)) <= 0.02 * np.linalg.norm(truth)


def test_wrong_labels_of_other_classes_are_rejected_although_a_class_came_with_them(deployment: Deployment) -> None:
    world = World(6)
    name = new_model(deployment, world)
    add_class(deployment, name)
    world.send(deployment, name, [300, 300, 300, 100], shift=1)
    deployment.adapted(name)
    rejected = deployment.version(name, 3)
    assert (rejected["state"], rejected["gate"]["passed"]) == ("rejected", False)
    assert deployment.get(f"/v1/models/{name}")["counts"]["quarantined"] == 1000
