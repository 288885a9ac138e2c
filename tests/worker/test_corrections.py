"""Corrected examples, with workers at work: the model is what scikit-learn fits on the examples as they are now."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.deployment import Deployment, Numbers, fitted, problem
from tests.worker.erasure_helpers import PERSON, erase, filled_rows, near, train_with_person

N = 200
Row = tuple[Numbers, Any]


def correct(deployment: Deployment, name: str, rows: dict[str, Row]) -> dict[str, Any]:
    examples = [{"id": id, "x": x.tolist(), "y": int(y)} for id, (x, y) in rows.items()]
    with deployment.client() as client:
        answer = client.put(f"/v1/models/{name}/examples", json={"examples": examples})
    replaced: dict[str, Any] = answer.raise_for_status().json()
    return replaced


@pytest.mark.parametrize("fraction", [0.1, 1.0])
def test_any_history_of_corrections_ends_within_its_bound_of_a_retrain(deployment: Deployment, fraction: float) -> None:
    rng = np.random.default_rng(7)
    x, y = problem(1000, seed=3)
    fresh = iter(zip(x, y, strict=True))
    name = deployment.new_model(policy={"memory": {"fraction": fraction}, "holdout": 0})
    rows: dict[str, Row] = {f"e{i}": next(fresh) for i in range(N)}
    deployment.add_examples(name, *unzip(rows))
    deployment.adapted(name)
    first, positions = N, N
    for _ in range(3):
        for _ in range(8):
            kind, some = rng.integers(3), [str(id) for id in rng.choice(sorted(rows), 6, replace=False)]
            if kind == 0:
                more = {f"e{first + i}": next(fresh) for i in range(6)}
                deployment.add_examples(name, *unzip(more), first=first)
                rows, first = rows | more, first + 6
            elif kind == 1:
                deployment.remove(name, [int(id[1:]) for id in some])
                rows = {id: row for id, row in rows.items() if id not in some}
            else:
                new = {id: next(fresh) for id in some}
                assert correct(deployment, name, new)["replaced"] == 6
                rows |= new
            positions += 6
        deployment.adapted(name)
        deployment.settled(name)
        version, model = deployment.champion(name), deployment.get(f"/v1/models/{name}")
        assert (version["kind"], version["position"], model["head"]) == ("adapted", positions, positions)
        assert model["counts"]["train"] == len(rows)
        assert deployment.datasets_agree(name)
        distance = np.linalg.norm(deployment.weights(name) - fitted(*unzip(rows)))
        assert distance <= version["certificate"]["bound"] + 1e-4  # float32 inputs, and the other solver's tolerance
        assert version["certificate"]["relative"] <= 0.01


def unzip(rows: dict[str, Row]) -> tuple[Numbers, Numbers]:
    return np.array([x for x, _ in rows.values()], np.float32), np.array([y for _, y in rows.values()])


def test_what_was_corrected_is_forgotten_and_deleted(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(policy={"memory": {"fraction": 1.0}, "holdout": 0}), problem(N)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    assert 1 in deployment.state(name).memory.key.tolist()
    job = correct(deployment, name, {"e0": (x[0] + 1, 1 - y[0])})["job"]
    assert deployment.ended(job)["state"] == "succeeded"
    remembered = deployment.state(name).memory.key.tolist()
    assert 1 not in remembered
    assert N + 1 in remembered
    deployment.wait_until(lambda: filled_rows(deployment, name) == list(range(2, N + 2)))


def test_a_corrected_holdout_example_is_measured_as_it_is_now(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(N)
    deployment.add_examples(name, x, y, split="train")
    deployment.add_examples(name, x[:2], y[:2], first=N, split="holdout")
    deployment.adapted(name)
    before = deployment.champion(name)["metrics"]
    wrong = {f"e{N + i}": (x[i], 1 - y[i]) for i in range(2)}
    deployment.ended(correct(deployment, name, wrong)["job"])
    after = deployment.champion(name)["metrics"]
    assert (before["rows"], after["rows"]) == (2, 2)
    assert after["accuracy"] == pytest.approx(1 - before["accuracy"])


def test_a_person_whose_examples_were_corrected_is_forgotten(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    deployment.ended(correct(deployment, name, {"e0": (x[0] + 1, 1 - y[0]), "e1": (x[1] - 1, y[1])})["job"])
    receipt = erase(deployment, person)
    [part] = receipt["models"]
    assert part["examples"] >= PERSON
    assert near(deployment, part, x[PERSON:], y[PERSON:])
    assert filled_rows(deployment, name) == list(range(PERSON + 1, 301))
