"""Which version serves, and which one the next adaptation starts from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.house import House, fitted, problem

TRAIN = {"split": "train"}
X, Y = problem(400)


def trained(house: House, **policy: Any) -> str:
    """A model with a version for the first 200 examples."""
    name = house.new_model(policy=policy)
    house.add_examples(name, X[:200], Y[:200], **TRAIN)
    house.adapted(name)
    return name


def grown(house: House, name: str, first: int, last: int) -> dict[str, Any]:
    """The version after more examples."""
    house.add_examples(name, X[first:last], Y[first:last], first=first, **TRAIN)
    return house.version(name, house.adapted(name)["version"])


def retrained(house: House, name: str) -> dict[str, Any]:
    job = house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    assert job["state"] == "succeeded", job
    return house.version(name, job["version"])


def promote(house: House, name: str, number: int) -> None:
    house.post(f"/v1/models/{name}/versions/{number}/promote")


def line(house: House, name: str) -> list[tuple[int, int | None, int, str]]:
    """All versions: number, parent, position, state."""
    found = house.get(f"/v1/models/{name}/versions")["items"]
    return [(v["version"], v["parent"], v["position"], v["state"]) for v in reversed(found)]


def near(house: House, name: str, first: int, last: int) -> bool:
    """Whether the champion is where a retrain on these examples would be."""
    distance = np.linalg.norm(house.weights(name) - fitted(X[first:last], Y[first:last]))
    return bool(distance <= house.champion(name)["certificate"]["bound"] + 1e-4)


def test_whoever_waited_for_a_job_is_answered_by_its_version(house: House) -> None:
    """Though the service had just looked who is champion."""
    name = trained(house)
    for first in (200, 220, 240):
        house.post(f"/v1/models/{name}/predictions", {"inputs": X[:1].tolist()})
        house.add_examples(name, X[first : first + 20], Y[first : first + 20], first=first, **TRAIN)
        job = house.adapted(name)
        predicted = house.post(f"/v1/models/{name}/predictions", {"inputs": X[:1].tolist()})
        assert predicted["version"] == job["version"]


def test_an_automatic_policy_promotes_each_version(house: House) -> None:
    name = trained(house)
    grown(house, name, 200, 250)
    assert line(house, name) == [(1, None, 200, "superseded"), (2, 1, 250, "champion")]
    promotions = house.get(f"/v1/models/{name}/promotions")["items"]
    assert [(p["version"], p["previous"], p["by"]) for p in promotions] == [(2, 1, "policy"), (1, None, "policy")]


def test_candidates_of_a_manual_policy_each_start_from_the_newest(house: House) -> None:
    name = trained(house, promote="manual")
    grown(house, name, 200, 250)
    job = house.ended(house.remove(name, range(10))["job"])
    assert (job["from_position"], job["to_position"]) == (250, 260)
    states = [(1, None, 200, "candidate"), (2, 1, 250, "candidate"), (3, 2, 260, "candidate")]
    assert line(house, name) == states
    model = house.get(f"/v1/models/{name}")
    assert (model["champion"], model["pending"]) == (None, 260)
    promote(house, name, 3)
    assert near(house, name, 10, 250)
    assert house.get(f"/v1/models/{name}")["pending"] == 0


def test_after_a_rollback_the_next_adaptation_starts_from_there_and_misses_nothing(house: House) -> None:
    name = trained(house)
    grown(house, name, 200, 250)
    promote(house, name, 1)
    house.post(f"/v1/models/{name}/resume")
    assert house.get(f"/v1/models/{name}")["pending"] == 50
    assert line(house, name)[-1][3] == "superseded"
    version = grown(house, name, 250, 300)
    assert (version["version"], version["parent"], version["position"], version["state"]) == (3, 1, 300, "champion")
    assert near(house, name, 0, 300)
    assert house.datasets_agree(name)


def test_after_a_rollback_resume_forgets_again_what_was_removed(house: House) -> None:
    name = trained(house)
    house.ended(house.remove(name, range(20))["job"])
    promote(house, name, 1)
    assert house.champion(name)["version"] == 1
    job = house.ended(house.post(f"/v1/models/{name}/resume")["job"])
    assert (job["from_position"], job["to_position"]) == (200, 220)
    assert house.get(f"/v1/models/{name}")["pending"] == 0
    assert near(house, name, 20, 200)
    assert house.datasets_agree(name)


def test_a_rollback_while_an_adaptation_runs_or_waits_is_not_lost(house: House) -> None:
    name = trained(house, promote="manual")
    grown(house, name, 200, 250)
    with house.worker_held():
        house.add_examples(name, X[250:300], Y[250:300], first=250, **TRAIN)
        job = house.post(f"/v1/models/{name}/adaptations")
        assert job["from_position"] == 250
        promote(house, name, 1)
    job = house.ended(job["id"])
    assert (job["from_position"], job["to_position"]) == (200, 300)
    assert line(house, name)[-1] == (3, 1, 300, "candidate")
    assert house.get(f"/v1/models/{name}")["champion"] == 1


@pytest.mark.parametrize("kind", ["adaptations", "retrains"])
def test_nothing_to_do_changes_nothing(house: House, kind: str) -> None:
    name = trained(house)
    job = house.ended(house.post(f"/v1/models/{name}/{kind}")["id"])
    assert job["state"] == "succeeded"
    assert house.get(f"/v1/models/{name}")["champion"] == 1
    if kind == "adaptations":
        assert (job["version"], len(line(house, name))) == (1, 1)


def test_a_retrain_within_tolerance_stays_a_candidate(house: House) -> None:
    name = house.new_model()
    house.add_examples(name, X[:200], Y[:200])
    house.adapted(name)
    house.add_examples(name, X[200:], Y[200:], first=200)
    version = retrained(house, name)
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert (comparison["position"], comparison["adapted"], comparison["retrained"]) == (400, 2, 3)
    assert comparison["within_tolerance"]
    assert comparison["disagreement"] <= 0.01
    distance = np.linalg.norm(house.weights(name, 2) - house.weights(name, 3))
    assert comparison["weight_distance"] == pytest.approx(distance)
    assert (version["kind"], version["state"], house.champion(name)["version"]) == ("trained", "candidate", 2)


def outside(house: House, **policy: Any) -> str:
    """A model with an adapted version that no retrain agrees with: it is never certified, and nothing is tolerated."""
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-12, "disagreement": 0}}
    name = trained(house, **strict, **policy)
    house.ended(house.remove(name, range(100))["job"])
    return name


def test_a_retrain_outside_tolerance_is_promoted(house: House) -> None:
    name = outside(house)
    version = retrained(house, name)
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert not comparison["within_tolerance"]
    assert (version["version"], version["state"], version["position"]) == (3, "champion", 300)
    np.testing.assert_allclose(house.weights(name), fitted(X[100:200], Y[100:200]), atol=1e-4)
    assert grown(house, name, 200, 250)["parent"] == 3


def judged(house: House, name: str, sign: int) -> dict[str, Any]:
    """The retrain of a model with a holdout whose every row loses less (1) or more (-1) by it; the comparison."""
    towards = fitted(X[100:200], Y[100:200]) - house.weights(name)
    x = problem(100, seed=7)[0]
    y = (sign * (x @ towards[:-1] + towards[-1]) > 0).astype(int)
    house.add_examples(name, x, y, first=1000, split="holdout")
    retrained(house, name)
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert not comparison["within_tolerance"]
    assert comparison["rows"] == 100
    found: dict[str, Any] = comparison
    return found


def test_outside_tolerance_a_retrain_that_is_better_on_the_holdout_is_promoted(house: House) -> None:
    name = outside(house)
    comparison = judged(house, name, 1)
    assert comparison["loss"]["retrained"] < comparison["loss"]["adapted"]
    assert (comparison["worse"], comparison["took_over"]) == (None, True)
    assert house.champion(name)["version"] == comparison["retrained"]


def test_outside_tolerance_a_retrain_that_is_worse_on_the_holdout_stays_a_candidate(house: House) -> None:
    name = outside(house)
    comparison = judged(house, name, -1)
    loss = comparison["loss"]
    assert loss["retrained"] - loss["adapted"] > 2 * loss["difference_se"] > 0
    assert not comparison["took_over"]
    assert comparison["worse"].startswith("loss ")
    assert comparison["outcome"] == (
        f"the retrained version is worse on the holdout and stays a candidate: {comparison['worse']}"
    )
    champion = house.champion(name)
    assert (champion["version"], champion["kind"]) == (comparison["adapted"], "adapted")
    assert house.version(name, comparison["retrained"])["state"] == "candidate"
    [job] = [job for job in house.settled(name) if job["kind"] == "retrain"]
    assert comparison["outcome"] in job["message"]
    # and adaptations go on from the adapted one
    assert grown(house, name, 200, 220)["parent"] == comparison["adapted"]


def test_with_a_manual_policy_it_waits_and_later_candidates_start_from_it(house: House) -> None:
    name = outside(house, promote="manual")
    promote(house, name, 2)
    assert retrained(house, name)["state"] == "candidate"
    assert grown(house, name, 200, 250)["parent"] == 3
    assert house.champion(name)["version"] == 2


def test_the_first_retrain_of_a_model_trains_it(house: House) -> None:
    name = house.new_model()
    house.add_examples(name, X, Y, **TRAIN)
    version = retrained(house, name)
    assert (version["version"], version["state"], version["position"]) == (1, "champion", 400)
    assert near(house, name, 0, 400)
