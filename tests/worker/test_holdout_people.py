"""A person whose examples were held out: versions never learnt from them, but were measured on them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from core.models import catalog
from core.quality.evaluation_windows import Scores
from core.quality.queries import list_windows
from core.tables.versions import Version
from tests.worker.deployment import Deployment, problem
from tests.worker.erasure_helpers import ask, erase, states, wait_for_end


def loss_of(w: Any, x: Any, y: int) -> float:
    """The log loss of a logistic model; the bias comes last."""
    f = float(x @ w[:-1] + w[-1])
    return float(np.logaddexp(0, f) - y * f)


def sums(figures: list[dict[str, Any]]) -> list[float]:
    """Loss times count, of every set of figures that names both."""
    return [f["loss"] * f["rows"] for f in figures if f.get("loss") is not None and f.get("rows")]


def tells(figures: list[dict[str, Any]], secret: float, within: float = 1e-3) -> bool:
    """Whether the difference of two sums is what one example lost."""
    return any(abs(abs(a - b) - secret) < within for a, b in combinations(sums(figures), 2))


def figures_of(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    """All figures that the database has of a model's versions, windows and gates, and that the service tells."""
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        rows = [session.get_one(Version, (model.id, int(v["version"]))) for v in versions(deployment, name)]
        windows = list_windows(session, model.id)
    unseen = [{"rows": w.rows, **metrics} for w in windows for metrics in w.metrics.values()]
    for kind in ("job", "hour", "week"):
        for w in deployment.get(f"/v1/models/{name}/quality?window={kind}")["items"]:
            unseen += [{"rows": w["rows"], **w[side]} for side in ("champion", "frozen", "baseline") if w[side]]
    gates = [gate for row in rows if row.gate for gate in (row.gate, row.gate.get("confirmed"), row.gate.get("batch"))]
    unseen += [
        {"rows": gate["rows"], "loss": gate[side]}  # type: ignore[literal-required]
        for gate in gates
        if gate is not None and gate["metric"] == "loss"
        for side in ("champion", "candidate")
    ]
    stored = [row.metrics for row in rows] + [(row.evaluation or {}).get("frozen") or {} for row in rows]
    comparisons = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    compared = [
        {"rows": c["rows"], "loss": c["loss"][side]}
        for c in comparisons
        for side in ("adapted", "retrained")
        if c["loss"]
    ]
    return [*stored, *(v["metrics"] for v in versions(deployment, name)), *compared, *unseen]


def scored_losses(deployment: Deployment, name: str) -> list[float]:
    """The loss of every single example that is stored."""
    with deployment.database.read() as session:
        windows = list_windows(session, catalog.find(session, name, None).id)
    scores = [Scores.from_bytes(window.scores) for window in windows if window.scores is not None]
    return [loss for part in scores for rows in part.contestants.values() for loss in rows.loss.tolist()]


def versions(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment.get(f"/v1/models/{name}/versions")["items"]
    return found


def test_the_loss_of_an_erased_person_is_not_the_difference_of_two_figures(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(260)
    person = f"held out of {name}"
    deployment.add_examples(name, x[:200], y[:200], split="train")
    deployment.add_examples(name, x[200:245], y[200:245], first=200, split="holdout")
    deployment.adapted(name)
    frozen = deployment.weights(name)
    deployment.add_examples(name, x[245:259], y[245:259], first=245, split="holdout")
    deployment.add_examples(name, x[259:], y[259:], first=259, split="holdout", subject=person)
    deployment.adapted(name)
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    secret = loss_of(frozen, x[259], int(y[259]))
    others = sum(loss_of(frozen, *pair) for pair in zip(x[245:259], y[245:259].tolist(), strict=True))
    known = [{"rows": 1, "loss": others}]  # whoever has the other examples of the batch can compute this
    assert tells(figures_of(deployment, name) + known, secret), "as long as nobody asked to be forgotten"
    assert np.isclose(scored_losses(deployment, name), secret, atol=1e-6).any()
    [part] = erase(deployment, person)["models"]
    assert not tells(figures_of(deployment, name) + known, secret)
    assert not np.isclose(scored_losses(deployment, name), secret, atol=1e-6).any()
    [window] = deployment.get(f"/v1/models/{name}/quality?window=job")["items"]
    assert (window["rows"], window["rounded"]) == (14, True)
    purged = [v for v in versions(deployment, name) if v["state"] == "purged"]
    assert purged
    for version in purged:
        assert (version["metrics"], version["certificate"], version["sha256"]) == ({}, None, None)
    assert deployment.get(f"/v1/models/{name}/comparisons")["items"] == []
    # the version from before the person came is still there, with its figures
    assert states(deployment, name)[1] == "superseded"
    assert deployment.version(name, 1)["metrics"]["rows"] == 45
    assert part["versions"]["purged"] == sorted(v["version"] for v in purged)
    assert {"versions": [1], "reason": "made before this data arrived"} in part["versions"]["stay"]


def test_a_version_from_before_the_person_can_be_rolled_back_to(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(300)
    person = f"late in {name}"
    deployment.add_examples(name, x[:200], y[:200], split="train")
    deployment.adapted(name)
    deployment.add_examples(name, x[200:250], y[200:250], first=200, split="train", subject=person)
    deployment.adapted(name)
    deployment.add_examples(name, x[250:], y[250:], first=250, split="train")
    deployment.adapted(name)
    before = deployment.weights(name, 1)
    [part] = erase(deployment, person)["models"]
    assert states(deployment, name) == {1: "superseded", 2: "purged", 3: "purged", 4: "champion"}
    assert part["versions"] == {
        "purged": [2, 3],
        "stay": [
            {"versions": [1], "reason": "made before this data arrived"},
            {"versions": [4], "reason": "made without this data"},
        ],
    }
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    np.testing.assert_array_equal(deployment.weights(name), before)


def test_figures_of_purged_weights_on_other_versions_go_too(deployment: Deployment) -> None:
    """The first version knew the person: how it would do today is measured with every version."""
    name, (x, y) = deployment.new_model(), problem(300)
    person = f"first of {name}"
    deployment.add_examples(name, x[:20], y[:20], split="train", subject=person)
    deployment.add_examples(name, x[20:], y[20:], first=20)
    deployment.adapted(name)
    deployment.remove(name, [100])
    deployment.settled(name)
    erase(deployment, person)
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        champion = session.get_one(Version, (model.id, model.champion))
    assert "frozen" not in (champion.evaluation or {})
    assert champion.metrics["loss"] > 0


def test_no_comparison_of_a_purged_version_stays_and_no_hash_of_one_that_is_kept(deployment: Deployment) -> None:
    """A person who was plainly removed before, with a retrain in between: both versions go, and their figures."""
    keep = {"erasure": {"keep_superseded": "7d"}}
    for policy in ({}, keep):
        name, (x, y) = deployment.new_model(policy=policy), problem(200)
        person = f"removed from {name}"
        deployment.add_examples(name, x[:5], y[:5], split="train", subject=person)
        deployment.add_examples(name, x[5:], y[5:], first=5, split="train")
        deployment.adapted(name)
        deployment.ended(deployment.remove(name, range(5))["job"])
        deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
        deployment.settled(name)
        assert deployment.get(f"/v1/models/{name}/comparisons")["items"]
        assert wait_for_end(deployment, ask(deployment, person))["state"] == "completed"
        assert deployment.get(f"/v1/models/{name}/comparisons")["items"] == []
        champion = deployment.champion(name)["version"]
        old = [v for v in versions(deployment, name) if v["version"] != champion]
        assert [(v["sha256"], v["certificate"], v["metrics"]) for v in old] == [(None, None, {})] * len(old)
