"""The promotion gate through REST: bad batches are rejected and quarantined, everything else goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.service.test_pages import visit
from tests.worker.deployment import Deployment, Numbers, fitted
from tests.worker.erasure_helpers import erase, filled_rows
from tests.worker.test_webhooks import told

DIM = 4
RULE = np.array([1.5, -1.0, 0.5, 0.0])


def subject(name: str, number: int) -> str:
    """The person of an example. Nobody is in two models: an erasure would have to wait for all of them."""
    return f"{name}-p{number}"


class World:
    """Examples of a linear rule; ids go on from batch to batch."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.x, self.y, self.bad = np.zeros((0, DIM), np.float32), np.zeros(0, int), np.zeros(0, bool)
        self.source: str | None = None

    def rows(self, n: int, flip: float = 0.0, tilt: float = 0.0) -> tuple[Numbers, Numbers]:
        x = self.rng.normal(size=(n, DIM)).astype(np.float32)
        y = (self.rng.random(n) < 1 / (1 + np.exp(-(x @ RULE + tilt * x[:, 3])))).astype(int)
        return x, np.where(self.rng.random(n) < flip, 1 - y, y)

    def send(self, deployment: Deployment, name: str, n: int, **kind: float) -> list[int]:
        """Add a batch, a fifth of it to the holdout; returns the numbers of its ids."""
        x, y = self.rows(n, **kind)
        first = len(self.x)
        self.x, self.y = np.vstack([self.x, x]), np.concatenate([self.y, y])
        held_out = np.arange(n) % 5 == 0
        rows = [
            {"id": f"e{first + i}", "subject": subject(name, first + i), "x": x[i].tolist(), "y": int(y[i]),
             "split": "holdout" if held_out[i] else "train", **({"source": self.source} if self.source else {})}
            for i in range(n)
        ]  # fmt: skip
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
        return list(range(first, first + n))

    def fit(self, numbers: list[int]) -> Numbers:
        """scikit-learn's weights for the training examples among these."""
        train = [i for i in numbers if i % 5 != 0]
        return fitted(self.x[train], self.y[train])


@pytest.fixture
def world() -> World:
    return World()


def started(deployment: Deployment, world: World, count: int = 1000, **policy: Any) -> tuple[str, list[int]]:
    """A model whose first version learnt good examples, a fifth of which is held out."""
    name = deployment.new_model(policy=policy)
    numbers = world.send(deployment, name, count)
    assert deployment.adapted(name)["version"] == 1
    return name, numbers


def model(deployment: Deployment, name: str) -> dict[str, Any]:
    found: dict[str, Any] = deployment.get(f"/v1/models/{name}")
    return found


def predictions(deployment: Deployment, name: str, x: Numbers) -> Any:
    return deployment.post(f"/v1/models/{name}/predictions", {"inputs": x[:5].tolist()})


def is_near(deployment: Deployment, name: str, weights: Numbers) -> bool:
    """Whether the champion is within its bound of these weights."""
    distance = np.linalg.norm(deployment.weights(name) - weights)
    return bool(distance <= deployment.champion(name)["certificate"]["bound"] + 1e-4)


def poisoned(deployment: Deployment, world: World, **policy: Any) -> tuple[str, list[int], list[int]]:
    """A model whose second batch of 1000 flipped labels was rejected."""
    name, good = started(deployment, world, **policy)
    bad = world.send(deployment, name, 1000, flip=1.0)
    job = deployment.adapted(name)
    assert (job["state"], job["version"]) == ("succeeded", 2)
    assert job["message"] == "Version 2 was rejected by the promotion gate; 1000 new examples are in quarantine."
    return name, good, bad


@pytest.mark.both_databases
def test_flipped_labels_are_rejected_and_quarantined(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    rejected, found = deployment.version(name, 2), model(deployment, name)
    gate = rejected["gate"]
    assert rejected["state"] == "rejected"
    assert (gate["passed"], gate["metric"], gate["action"], gate["rows"]) == (False, "loss", "reject", 200)
    assert gate["difference"] == pytest.approx(gate["candidate"] - gate["champion"])
    assert gate["difference"] > 3 * gate["difference_se"]
    assert gate["relative"] > 0.05
    assert gate["batch"]["relative"] < 0  # on the batch's own holdout the new version is better: a person decides
    assert (found["champion"], found["pending"]) == (1, 0)
    assert found["counts"] == {"train": 800, "holdout": 200, "removed": 0, "quarantined": 1000, "unlabelled": 0}
    assert predictions(deployment, name, world.x)["version"] == 1
    assert is_near(deployment, name, world.fit(good))
    listed = deployment.get(f"/v1/models/{name}/examples?state=quarantined&limit=1000")["items"]
    assert {example["id"] for example in listed} == {f"e{i}" for i in bad}


@pytest.mark.both_databases
def test_an_ordinary_batch_after_a_rejection_is_learnt_without_the_bad_examples(
    deployment: Deployment, world: World
) -> None:
    name, good, _ = poisoned(deployment, world)
    good += world.send(deployment, name, 300)
    assert deployment.adapted(name)["version"] == 3
    champion = deployment.champion(name)
    assert (champion["version"], champion["parent"], champion["gate"]["passed"]) == (3, 1, True)
    assert is_near(deployment, name, world.fit(good))
    assert deployment.datasets_agree(name)


@pytest.mark.both_databases
def test_accepting_puts_the_examples_back_and_promotes(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    decision = deployment.post(f"/v1/models/{name}/versions/2/accept")
    assert (decision["state"], decision["examples"]) == ("champion", 1000)
    assert predictions(deployment, name, world.x)["version"] == 2
    deployment.ended(decision["job"])
    assert is_near(deployment, name, world.fit(good + bad))
    counts = model(deployment, name)["counts"]
    assert (counts["quarantined"], counts["removed"], counts["train"]) == (0, 0, 1600)
    promoted = deployment.get(f"/v1/models/{name}/promotions")["items"]
    assert [found["by"] for found in promoted] == [found["by"] for found in promoted[:2]] + ["policy"]
    assert "policy" not in [found["by"] for found in promoted[:-1]]  # a person accepted the version and its successor
    # the next batch is judged by what was accepted
    world.send(deployment, name, 200)
    assert deployment.version(name, deployment.adapted(name)["version"])["state"] == "champion"
    assert deployment.datasets_agree(name)


def test_accepting_after_later_changes_adapts_the_champion(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    good += world.send(deployment, name, 200)
    deployment.adapted(name)
    decision = deployment.post(f"/v1/models/{name}/versions/2/accept")
    assert decision["state"] == "superseded"
    job = deployment.ended(decision["job"])
    champion = deployment.champion(name)
    assert champion["version"] == job["version"] == 4
    assert (champion["gate"]["passed"], champion["gate"]["action"]) == (False, "warn")
    assert deployment.get(f"/v1/models/{name}/promotions")["items"][0]["by"] != "policy"
    assert is_near(deployment, name, world.fit(good + bad))


@pytest.mark.both_databases
def test_discarding_removes_the_examples(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    decision = deployment.post(f"/v1/models/{name}/versions/2/discard")
    assert (decision["state"], decision["examples"], decision["job"]) == ("rejected", 1000, None)
    counts = model(deployment, name)["counts"]
    assert counts == {"train": 800, "holdout": 200, "removed": 1000, "quarantined": 0, "unlabelled": 0}
    assert not deployment.get(f"/v1/models/{name}/examples?state=quarantined")["items"]
    assert is_near(deployment, name, world.fit(good))
    # nothing was trained on them, so they are deleted without waiting for another version
    deployment.wait_until(lambda: len(filled_rows(deployment, name)) == len(good))
    assert len(bad) == 1000


@pytest.mark.both_databases
def test_removing_a_source_includes_its_quarantined_examples(deployment: Deployment, world: World) -> None:
    """A load arrives in two batches, before and after a rejection: removing it leaves nothing of either."""
    name, good = started(deployment, world)
    world.source = "monday"
    world.send(deployment, name, 100)
    deployment.adapted(name)
    world.send(deployment, name, 1000, flip=1.0)
    assert deployment.version(name, deployment.adapted(name)["version"])["state"] == "rejected"
    removal = deployment.post(f"/v1/models/{name}/removals", {"source": "monday"})
    assert removal["removed"] == 1100
    counts = model(deployment, name)["counts"]
    assert counts == {
        "train": 800,
        "holdout": 200,
        "removed": 1100,
        "quarantined": 0,
        "unlabelled": 0,
    }
    deployment.ended(removal["job"])
    assert is_near(deployment, name, world.fit(good))
    assert deployment.datasets_agree(name)


def test_removing_only_quarantined_examples_needs_no_job(deployment: Deployment, world: World) -> None:
    name, good, _ = poisoned(deployment, world)
    head = model(deployment, name)["head"]
    removal = deployment.post(f"/v1/models/{name}/removals", {"positions": [1001, 2000]})
    assert (removal["removed"], removal["job"], removal["position"]) == (1000, None, head)
    counts = model(deployment, name)["counts"]
    assert counts == {
        "train": 800,
        "holdout": 200,
        "removed": 1000,
        "quarantined": 0,
        "unlabelled": 0,
    }
    assert is_near(deployment, name, world.fit(good))


@pytest.mark.both_databases
def test_quarantined_examples_are_removed_by_id_and_by_subject(deployment: Deployment, world: World) -> None:
    """Accepting the version afterwards does not bring them back."""
    name, good, bad = poisoned(deployment, world)
    removal = deployment.post(f"/v1/models/{name}/removals", {"ids": ["e1000", "e1001", "nobody"]})
    assert (removal["removed"], removal["unknown"], removal["job"]) == (2, ["nobody"], None)
    assert deployment.get(f"/v1/models/{name}/removals/{removal['id']}")["unknown_count"] == 1
    removal = deployment.post(f"/v1/models/{name}/removals", {"subjects": [subject(name, 1002), subject(name, 1)]})
    assert (removal["removed"], removal["unknown"]) == (2, [])
    counts = model(deployment, name)["counts"]
    assert counts == {
        "train": 799,
        "holdout": 200,
        "removed": 4,
        "quarantined": 997,
        "unlabelled": 0,
    }
    deployment.ended(removal["job"])
    decision = deployment.post(f"/v1/models/{name}/versions/2/accept")
    assert decision["examples"] == 997
    deployment.settled(name)
    assert is_near(deployment, name, world.fit([good[0], *good[2:], *bad[3:]]))
    assert deployment.datasets_agree(name)


def test_only_a_rejected_version_can_be_decided_about(deployment: Deployment, world: World) -> None:
    name, *_ = poisoned(deployment, world)
    with deployment.client() as client:
        for path, code in (("1/accept", "version_not_rejected"), ("2/promote", "version_rejected")):
            response = client.post(f"/v1/models/{name}/versions/{path}")
            assert (response.status_code, response.json()["code"]) == (409, code)


@pytest.mark.both_databases
def test_many_small_steps_do_not_add_up(deployment: Deployment, world: World) -> None:
    name, good = started(deployment, world, count=5000)
    states = []
    for _ in range(6):
        world.send(deployment, name, 300, flip=1.0)
        states.append(deployment.version(name, deployment.adapted(name)["version"])["state"])
    assert "rejected" in states
    x, y = world.rows(5000)

    def loss(weights: Numbers) -> float:
        f = x @ weights[:-1] + weights[-1]
        return float(np.logaddexp(0, np.where(y == 1, -f, f)).mean())

    assert loss(deployment.weights(name)) < 1.08 * loss(world.fit(good))


def test_a_removal_in_the_same_job_takes_effect_at_once(deployment: Deployment, world: World) -> None:
    name, good = started(deployment, world)
    with deployment.worker_held():
        world.send(deployment, name, 1000, flip=1.0)
        removal = deployment.remove(name, range(50))
    deployment.ended(removal["job"])
    versions = {v["version"]: v["state"] for v in deployment.get(f"/v1/models/{name}/versions")["items"]}
    assert versions == {1: "superseded", 2: "rejected", 3: "champion"}
    assert is_near(deployment, name, world.fit(good[50:]))


def test_removals_and_requested_changes_are_never_rejected(deployment: Deployment, world: World) -> None:
    """Even if the model gets much worse: only a warning is recorded."""
    name, good = started(deployment, world)
    ones = [i for i in good if world.y[i] == 1 and i % 5 != 0]
    deployment.ended(deployment.remove(name, ones[:-5])["job"])
    champion = deployment.champion(name)
    assert (champion["version"], champion["gate"]["passed"], champion["gate"]["action"]) == (2, False, "warn")
    change = deployment.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 1e5}})
    deployment.ended(change["job"])
    assert deployment.champion(name)["version"] == 3
    # what a person asked for is no reason to reject the batches that follow
    world.send(deployment, name, 100)
    deployment.adapted(name)
    assert deployment.champion(name)["version"] == 4


@pytest.mark.both_databases
def test_an_erasure_during_a_quarantine_changes_nothing_about_it(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    erased = [good[1], bad[1]]
    for number in erased:
        request = deployment.post("/v1/erasures", {"subject": subject(name, number)})
        deployment.wait_until(lambda at=request["id"]: deployment.get(f"/v1/erasures/{at}")["state"] == "completed")
    found = model(deployment, name)
    assert found["counts"]["quarantined"] == 999
    assert found["counts"]["train"] == 799
    assert is_near(deployment, name, world.fit([i for i in good if i != erased[0]]))
    # the rejected version had learnt an erased example and is purged; the decision about the others is still open
    assert deployment.version(name, 2)["state"] == "purged"
    assert deployment.post(f"/v1/models/{name}/versions/2/discard")["examples"] == 999


def test_a_policy_can_warn_instead(deployment: Deployment, world: World) -> None:
    name, _ = started(deployment, world, gate={"action": "warn"})
    world.send(deployment, name, 1000, flip=1.0)
    deployment.adapted(name)
    champion = deployment.champion(name)
    assert (champion["version"], champion["gate"]["passed"], champion["gate"]["action"]) == (2, False, "warn")
    assert model(deployment, name)["counts"]["quarantined"] == 0


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_other_metrics_decide_if_the_policy_says_so(deployment: Deployment, world: World, metric: str) -> None:
    name, _ = started(deployment, world, gate={"metric": metric})
    world.send(deployment, name, 1500, flip=1.0)
    deployment.adapted(name)
    gate = deployment.version(name, 2)["gate"]
    assert (gate["metric"], gate["passed"]) == (metric, False)


def test_a_change_of_concept_is_promoted_if_it_comes_gradually(deployment: Deployment, world: World) -> None:
    name, _ = started(deployment, world)
    for day in range(6):
        world.send(deployment, name, 150, tilt=0.2 * day)
        assert deployment.version(name, deployment.adapted(name)["version"])["state"] == "champion"


def test_versions_that_cannot_be_judged_say_why(deployment: Deployment, world: World) -> None:
    name, _ = started(deployment, world)
    first = deployment.version(name, 1)["gate"]
    assert (first["passed"], first["reason"]) == (None, "first_version")
    small = deployment.new_model()
    deployment.add_examples(small, world.x[:100], world.y[:100], split="train")
    deployment.adapted(small)
    deployment.add_examples(small, world.x[100:150], 1 - world.y[100:150], first=100, split="train")
    deployment.adapted(small)
    gate = deployment.champion(small)["gate"]
    assert (gate["passed"], gate["reason"], gate["rows"]) == (None, "too_few_rows", 0)


def test_the_comparison_with_the_confirmed_version_does_not_end_as_the_ledger_grows(
    deployment: Deployment, world: World
) -> None:
    """The sample has 100 of 2100 holdout examples, so hardly any of the first 100; more of them are drawn."""
    name, _ = started(deployment, world, count=500, evaluation={"rows": 100})
    for _ in range(2):
        world.send(deployment, name, 5000)
        deployment.adapted(name)
    gate = deployment.champion(name)["gate"]
    assert (gate["confirmed"]["version"], gate["confirmed"]["passed"]) == (1, True)
    assert gate["confirmed"]["rows"] == 100


def test_corrections_are_never_rejected_or_quarantined(deployment: Deployment, world: World) -> None:
    """The examples that they replace are gone: without the corrections, there would be none."""
    name, good = started(deployment, world)
    rows = [{"id": f"e{i}", "x": world.x[i].tolist(), "y": int(1 - world.y[i])} for i in good if i % 5 != 0]
    job = deployment.request("PUT", f"/v1/models/{name}/examples", json={"examples": rows})["job"]
    deployment.ended(job)
    champion, found = deployment.champion(name), model(deployment, name)
    assert (champion["version"], champion["gate"]["passed"], champion["gate"]["action"]) == (2, False, "warn")
    assert (found["counts"]["train"], found["counts"]["quarantined"]) == (800, 0)


def correct(deployment: Deployment, name: str, world: World, numbers: list[int], labels: Numbers, **more: str) -> Any:
    """Replace examples, and return the gate of the version that reflects this."""
    rows = [{"id": f"e{i}", "x": world.x[i].tolist(), "y": int(labels[i]), **more} for i in numbers]
    job = deployment.request("PUT", f"/v1/models/{name}/examples", json={"examples": rows})["job"]
    return deployment.version(name, deployment.ended(job)["version"])["gate"]


@pytest.mark.parametrize("attack", ["holdout_first", "few_by_few", "send_again", "move_holdout", "remove_holdout"])
def test_nobody_makes_the_gate_blind_unnoticed(deployment: Deployment, world: World, attack: str) -> None:
    """Corrected and removed holdout examples judge no version, and are not scored before the model learns them."""
    name, good = started(deployment, world)
    held_out, gates = [i for i in good if i % 5 == 0], []
    if attack == "holdout_first":
        gates.append(correct(deployment, name, world, held_out, 1 - world.y))
        assert (gates[0]["corrections"]["passed"], gates[0]["corrections"]["rows"]) == (False, 200)
    elif attack == "few_by_few":
        gates += [correct(deployment, name, world, held_out[k : k + 20], 1 - world.y) for k in (0, 20)]
    elif attack == "send_again":
        with deployment.worker_held():
            deployment.remove(name, held_out[:100])
            rows = [{"id": f"e{i}", "subject": subject(name, i), "x": world.x[i].tolist(), "y": int(1 - world.y[i]),
                     "split": "holdout"} for i in held_out[:100]]  # fmt: skip
            deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
        gates.append(deployment.version(name, deployment.adapted(name)["version"])["gate"])
    elif attack == "move_holdout":
        gates.append(correct(deployment, name, world, held_out, world.y, split="train"))
    else:
        job = deployment.ended(deployment.remove(name, held_out)["job"])
        gates.append(deployment.version(name, job["version"])["gate"])
    assert (gates[-1]["passed"], gates[-1]["action"]) == (False, "warn")
    assert (gates[-1].get("reason") == "holdout_lost") == (attack in ("move_holdout", "remove_holdout"))
    assert model(deployment, name)["counts"]["quarantined"] == 0
    with visit(deployment) as browser:
        assert "changed the examples that it is judged by" in browser.get(f"/models/{name}").text


def test_correcting_everything_is_not_suspicious_in_itself(deployment: Deployment, world: World) -> None:
    """For example if all examples are sent again every night, with columns that have changed a little."""
    name, good = started(deployment, world)
    world.x = world.x + np.float32(0.01)
    gate = correct(deployment, name, world, good, world.y)
    assert (gate["passed"], gate["reason"], gate["corrections"]["passed"]) == (None, "too_few_rows", True)


def test_small_poisoned_batches_raise_an_alarm_together(deployment: Deployment, world: World) -> None:
    """Each is too small to be judged by itself: somebody could otherwise poison a model unnoticed, in small steps."""
    with told(deployment, "batch.suspicious") as (receiver, _):
        name, _ = started(deployment, world)
        jobs = []
        for _ in range(2):
            world.send(deployment, name, 60, flip=1.0)
            jobs.append(deployment.adapted(name)["id"])
        event = {"model": name, "job": jobs[1], "rows": 120}
        deployment.wait_until(lambda: event in receiver.events("batch.suspicious"))
        assert not any(one["job"] == jobs[0] for one in receiver.events("batch.suspicious"))
    items = deployment.get(f"/v1/models/{name}/quality?window=job")["items"]
    assert [item["alarm"] for item in items] == [True, True]  # the holdout examples of neither judge later versions
    world.send(deployment, name, 60)
    deployment.adapted(name)
    assert [item["alarm"] for item in deployment.get(f"/v1/models/{name}/quality?window=job")["items"]][2:] == [False]


def test_small_deteriorations_add_up_across_erasures(deployment: Deployment, world: World) -> None:
    """An erasure purges the confirmed version, which each of them would otherwise be compared with."""
    name, _ = started(deployment, world, 4000)
    relative = []
    for number in range(3):
        world.send(deployment, name, 280, flip=1.0)
        relative.append(deployment.version(name, deployment.adapted(name)["version"])["gate"]["relative"])
        erase(deployment, subject(name, number))
    assert max(relative) < 0.05  # each of them alone would pass
    assert model(deployment, name)["counts"]["quarantined"] > 0


def test_accepting_one_batch_does_not_accept_the_next(deployment: Deployment, world: World) -> None:
    name, good, bad = poisoned(deployment, world)
    world.send(deployment, name, 1000, flip=1.0)
    deployment.ended(deployment.post(f"/v1/models/{name}/versions/2/accept")["job"])
    counts = model(deployment, name)["counts"]
    assert (counts["train"], counts["holdout"], counts["quarantined"]) == (1600, 400, 1000)
    assert is_near(deployment, name, world.fit(good + bad))


def test_a_removal_that_needs_a_training_from_scratch_is_not_rejected(deployment: Deployment, world: World) -> None:
    """No bound meets the tolerance, so the model is trained again: such a version has no parent."""
    name, good = started(deployment, world, tolerance={"relative_bound": 1e-12, "disagreement": 0})
    ones = [i for i in good if world.y[i] == 1 and i % 5 != 0]
    deployment.ended(deployment.remove(name, ones[:-5])["job"])
    versions = deployment.get(f"/v1/models/{name}/versions")["items"]
    assert [(v["version"], v["state"]) for v in versions] == [(2, "champion"), (1, "superseded")]
