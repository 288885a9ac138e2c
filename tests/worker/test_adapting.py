"""Adaptations from end to end: what is asked for over REST is what scikit-learn fits on the retained examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.worker.house import DELTA, House, fitted, problem
from tests.worker.truth import TARGETS, examples_of, fit

TRAIN = {"split": "train"}
N, MORE = 240, 300
"""Examples before and after the addition."""


def test_the_first_adaptation_trains(house: House) -> None:
    name, (x, y) = house.new_model(), problem(300)
    house.add_examples(name, x, y, **TRAIN)
    job = house.adapted(name)
    assert (job["state"], job["version"], job["from_position"], job["to_position"]) == ("succeeded", 1, 0, 300)
    version = house.get(f"/v1/models/{name}/versions/1")
    assert (version["kind"], version["state"], version["method"]) == ("trained", "champion", "retrain")
    np.testing.assert_allclose(house.weights(name), fitted(x, y), atol=1e-4)


def add(house: House, name: str, x: Any, y: Any) -> dict[str, Any]:
    house.add_examples(name, x[N:MORE], y[N:MORE], first=N, **TRAIN)
    return {"rows": range(MORE)}


def remove(house: House, name: str, x: Any, y: Any) -> dict[str, Any]:
    house.remove(name, range(30))
    return {"rows": range(30, N)}


def regularize(house: House, name: str, x: Any, y: Any) -> dict[str, Any]:
    house.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 4.0}})
    return {"rows": range(N), "delta": 4.0}


def change_degree(house: House, name: str, x: Any, y: Any) -> dict[str, Any]:
    before = house.get(f"/v1/models/{name}")["architecture"]["degree"]
    house.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "degree": 3 - before}})
    return {"rows": range(N), "degree": 3 - before}


def everything(house: House, name: str, x: Any, y: Any) -> dict[str, Any]:
    changed = [change(house, name, x, y) for change in (add, regularize, change_degree, remove)]
    return {**changed[1], **changed[2], "rows": range(30, MORE)}


@pytest.mark.parametrize(
    ("change", "degree"),
    [(add, 1), (remove, 1), (regularize, 1), (change_degree, 1), (change_degree, 2), (everything, 1), (everything, 2)],
)
@pytest.mark.parametrize("kind", TARGETS)
def test_every_change_of_every_kind_of_model_ends_within_its_bound_of_a_retrain(
    house: House, kind: str, change: Callable[..., dict[str, Any]], degree: int
) -> None:
    architecture = {"kind": "linear", "degree": degree}
    name, (x, y) = house.new_model(target=TARGETS[kind], architecture=architecture), examples_of(kind, MORE)
    house.add_examples(name, x[:N], y[:N], **TRAIN)
    house.adapted(name)
    after = {"delta": DELTA, "degree": degree, **change(house, name, x, y)}
    house.adapted(name)
    house.settled(name)
    version = house.champion(name)
    assert (version["kind"], version["position"]) == ("adapted", house.get(f"/v1/models/{name}")["head"])
    rows = list(after.pop("rows"))
    distance = np.linalg.norm(house.weights(name) - fit(kind, x[rows], y[rows], **after))
    assert distance <= version["certificate"]["bound"] + 1e-6
    assert version["certificate"]["relative"] <= 0.01
    assert version["certificate"]["kind"] == "bound"
    assert house.datasets_agree(name)


def test_adds_removals_and_a_new_regularizer_become_one_version(house: House) -> None:
    name, (x, y) = house.new_model(), problem(400)
    house.add_examples(name, x[:300], y[:300], **TRAIN)
    house.adapted(name)
    with house.worker_held():
        house.add_examples(name, x[300:], y[300:], first=300, **TRAIN)
        house.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 3.0}})
        removal = house.remove(name, range(50))
    job = house.ended(removal["job"])
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", 300, 451)
    version = house.champion(name)
    assert (version["version"], version["parent"], version["position"]) == (2, 1, 451)
    assert house.get(f"/v1/models/{name}")["pending"] == 0
    distance = np.linalg.norm(house.weights(name) - fitted(x[50:], y[50:], 3.0))
    assert distance <= version["certificate"]["bound"] + 1e-4
