"""Test-then-train evaluation through REST: new examples are scored before the model learns them, each of them once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.worker.deployment import Deployment, Numbers
from tests.worker.test_gate import World


def quality(deployment: Deployment, name: str, window: str = "job") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = deployment.get(f"/v1/models/{name}/quality?window={window}")["items"]
    return items


def send(deployment: Deployment, name: str, world: World, n: int, prefix: str, **more: Any) -> tuple[Numbers, Numbers]:
    """Add a batch, some of it to the holdout; `more` are fields of every example."""
    kind = {key: more.pop(key) for key in ("flip", "tilt") if key in more}
    x, y = world.rows(n, **kind)
    rows = [
        {
            "id": f"{prefix}{i}",
            "x": x[i].tolist(),
            "y": int(y[i]),
            "split": "holdout" if i % 5 == 0 else "train",
            **more,
        }
        for i in range(n)
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    return x, y


def probabilities(weights: Numbers, x: Numbers) -> Numbers:
    found: Numbers = 1 / (1 + np.exp(-(x.astype(float) @ weights[:-1] + weights[-1])))
    return found


@pytest.mark.both_databases
def test_metrics_are_those_of_the_champion_before_it_learnt_the_batch(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 600, "a")
    deployment.adapted(name)
    assert quality(deployment, name) == []  # nobody had predicted the first examples
    first = deployment.weights(name, 1)
    x, y = send(deployment, name, world, 300, "b", tilt=1.0)
    deployment.adapted(name)
    second = deployment.weights(name, 2)
    later, truth = send(deployment, name, world, 200, "c", tilt=1.0)
    deployment.adapted(name)
    one, two = quality(deployment, name)
    assert [(w["first_position"], w["last_position"], w["rows"]) for w in (one, two)] == [
        (601, 900, 300),
        (901, 1100, 200),
    ]
    assert (one["champion"]["version"], one["frozen"]["version"]) == (1, 1)
    assert (two["champion"]["version"], two["frozen"]["version"]) == (2, 1)
    for window, weights, contestant, inputs, targets in (
        (one, first, "champion", x, y),
        (two, second, "champion", later, truth),
        (two, first, "frozen", later, truth),
    ):
        p = probabilities(weights, inputs)
        expected = {
            "loss": sk.log_loss(targets, p),
            "auc": sk.roc_auc_score(targets, p),
            "average_precision": sk.average_precision_score(targets, p),
            "brier": sk.brier_score_loss(targets, p),
            "accuracy": sk.accuracy_score(targets, p > 0.5),
        }
        for metric, value in expected.items():
            assert window[contestant][metric] == pytest.approx(value, rel=1e-5), metric
    majority = max(truth.mean(), 1 - truth.mean())
    assert two["baseline"]["accuracy"] == pytest.approx(majority)
    assert two["champion"]["loss"] < two["frozen"]["loss"]  # the concept has moved, and the champion with it


def test_windows_follow_the_event_time(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 300, "a")
    deployment.adapted(name)
    parts = {
        "2026-03-02T08:10:00Z": 40,
        "2026-03-02T08:50:00Z": 30,
        "2026-03-02T23:59:59Z": 20,
        "2026-03-08T00:00:00Z": 10,
    }
    sent = [send(deployment, name, world, n, time, time=time) for time, n in parts.items()]
    deployment.adapted(name)
    hours = [(w["from"], w["rows"]) for w in quality(deployment, name, "hour")]
    assert hours == [("2026-03-02T08:00:00Z", 70), ("2026-03-02T23:00:00Z", 20), ("2026-03-08T00:00:00Z", 10)]
    days = quality(deployment, name, "day")
    assert [(w["from"], w["to"], w["rows"]) for w in days] == [
        ("2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z", 90),
        ("2026-03-08T00:00:00Z", "2026-03-09T00:00:00Z", 10),
    ]
    assert [w["rows"] for w in quality(deployment, name, "week")] == [100]
    assert [w["rows"] for w in quality(deployment, name, "job")] == [100]
    # a day's AUC is that of all its rows, not a mean of hours
    weights = deployment.weights(name, 1)
    x, y = np.vstack([x for x, _ in sent[:3]]), np.concatenate([y for _, y in sent[:3]])
    assert days[0]["champion"]["auc"] == pytest.approx(sk.roc_auc_score(y, probabilities(weights, x)), rel=1e-9)


@pytest.mark.both_databases
def test_corrections_and_accepted_examples_are_not_scored_again(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 1000, "a")
    deployment.adapted(name)
    send(deployment, name, world, 800, "b", flip=1.0)
    deployment.adapted(name)
    assert [w["rows"] for w in quality(deployment, name)] == [800]
    deployment.ended(deployment.post(f"/v1/models/{name}/versions/2/accept")["job"])
    row = {"x": [0.0, 0.0, 0.0, 0.0], "y": 1}
    deployment.ended(deployment.request("PUT", f"/v1/models/{name}/examples/a1", json=row)["job"])
    deployment.adapted(name)
    assert [w["rows"] for w in quality(deployment, name)] == [800]


@pytest.mark.both_databases
def test_examples_that_are_removed_and_sent_again_are_not_scored(deployment: Deployment) -> None:
    """The champion has learnt them: its metrics on them would be those of training."""
    world, name = World(), deployment.new_model()
    x, y = send(deployment, name, world, 400, "a")
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/hold")  # otherwise, a job may forget them before they are sent again
    deployment.post(f"/v1/models/{name}/removals", {"ids": [f"a{i}" for i in range(100)]})
    again = [{"id": f"a{i}", "x": x[i].tolist(), "y": int(y[i])} for i in range(100)]
    deployment.post(f"/v1/models/{name}/examples", {"examples": again})
    send(deployment, name, world, 30, "b")
    deployment.post(f"/v1/models/{name}/resume")
    deployment.adapted(name)
    assert [(w["first_position"], w["last_position"], w["rows"]) for w in quality(deployment, name)] == [(601, 630, 30)]


def test_a_batch_with_a_far_higher_loss_raises_an_alarm(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model(policy={"gate": {"action": "warn"}})
    send(deployment, name, world, 1000, "a")
    deployment.adapted(name)
    for day, flip in enumerate((0.0, 0.0, 0.6, 0.0)):
        send(deployment, name, world, 300, f"day{day}-", flip=flip)
        deployment.adapted(name)
    assert [w["alarm"] for w in quality(deployment, name)] == [False, False, True, False]


def test_after_an_erasure_only_rounded_metrics_are_left(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 400, "a")
    send(deployment, name, world, 1, "person", subject="ada")
    deployment.adapted(name)
    send(deployment, name, world, 100, "b", time="2026-03-02T08:10:00Z")
    send(deployment, name, world, 4, "few", time="2026-03-05T08:10:00Z")
    deployment.adapted(name)
    exact = quality(deployment, name, "hour")
    assert [w["rows"] for w in exact] == [100, 4]
    erasure = deployment.post("/v1/erasures", {"subject": "ada"})["id"]
    deployment.wait_until(lambda: deployment.get(f"/v1/erasures/{erasure}")["state"] == "completed")
    (left,) = quality(deployment, name, "hour")  # a window of fewer than ten examples is deleted
    assert left["rows"] == 100
    assert left["champion"]["loss"] != exact[0]["champion"]["loss"]
    assert left["champion"]["loss"] == pytest.approx(
        exact[0]["champion"]["loss"],
        abs=8 * exact[0]["champion"]["loss_se"],  # the largest step of the random grid
    )
    # the frozen curve restarts at the erasure's version
    send(deployment, name, world, 50, "c")
    deployment.adapted(name)
    newest = quality(deployment, name, "job")[-1]
    assert newest["frozen"]["version"] == 3
    with deployment.client() as client:
        client.post("/sign-in", data={"key": deployment.admin_key})
        assert "frozen restarts" in client.get(f"/models/{name}").text
    purged = deployment.version(name, 2)
    assert (purged["state"], purged["gate"]["passed"], purged["gate"]["reason"]) == ("purged", None, "version_purged")
