"""A model that somebody already has, brought to each database: measured there, and adapted from there."""

from __future__ import annotations

import uuid

import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge

from amend import Client, ErasureFailed
from tests.worker.deployment import Deployment, fitted, problem


def test_an_imported_model_is_adapted_within_its_bound_of_a_fit(deployment: Deployment) -> None:
    name, (x, y) = f"brought-{uuid.uuid4().hex[:8]}", problem(300)
    rough = LogisticRegression(C=1.0, tol=1e-1).fit(x, y)
    policy = {"certify": "always", "retrain": {"every": None}}
    with Client(deployment.url, deployment.admin_key) as client:
        client.wait(client.import_model(name, rough, {"x": x, "y": y}, policy=policy))
        assert client.version(name, 1).method == "imported"
        client.wait(client.remove_examples(name, [f"row-{i}" for i in range(30)]).job)
        certificate = client.version(name, 2).certificate
    assert certificate is not None
    assert certificate.bound is not None
    truth = fitted(x[30:], y[30:])
    assert np.linalg.norm(deployment.weights(name) - truth) <= certificate.bound + 1e-6
    assert deployment.datasets_agree(name)


def test_a_model_is_trained_if_the_predictions_of_imported_weights_are_not_finite(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(target={"kind": "count"}), problem(100)
    deployment.add_examples(name, x, y, split="train")
    body = {"weights": [1e6] * (x.shape[1] + 1)}
    job = deployment.ended(deployment.post(f"/v1/models/{name}/imports", body)["id"])
    assert job["state"] == "succeeded", job
    assert deployment.champion(name)["method"] == "retrain"
    assert "the predictions of the imported weights for these examples are not finite" in job["message"]


def test_a_booster_predicts_the_same_and_is_adapted_within_its_bound(deployment: Deployment) -> None:
    name, r = f"booster-{uuid.uuid4().hex[:8]}", np.random.default_rng(2)
    rows = pd.DataFrame({"age": r.normal(40, 9, 500), "plan": pd.Categorical(r.choice(["free", "pro", "team"], 500))})
    rows.loc[::7, "age"] = np.nan
    y = (np.sin(rows.age.fillna(30) / 5) + (rows.plan == "pro") + r.normal(0, 0.5, 500) > 0.5).astype(int)
    booster = lightgbm.LGBMClassifier(n_estimators=6, num_leaves=6, verbosity=-1).fit(rows, y)
    policy, penalty = {"certify": "always", "retrain": {"every": None}}, {"kind": "l2", "delta": 20.0}
    with Client(deployment.url, deployment.admin_key) as client:
        client.wait(client.import_model(name, booster, rows.assign(y=y), policy=policy, regularizer=penalty))
        first = client.version(name, 1)
        inputs = [{"age": None if np.isnan(a) else a, "plan": p} for a, p in zip(rows.age, rows.plan, strict=True)]
        means = [output.mean for output in client.predict(name, inputs[:60]).outputs]
        client.wait(client.remove_examples(name, [f"row-{i}" for i in range(30)]).job)
        second = client.version(name, 2)
    assert means == pytest.approx(booster.predict_proba(rows[:60])[:, 1], abs=1e-6)
    assert first.method == "imported"
    assert first.certificate is not None
    assert first.certificate.scope == "head"
    assert second.certificate is not None
    assert second.certificate.relative is not None
    assert second.certificate.relative <= 0.01
    state = deployment.state(name)
    x = np.column_stack([rows.age, rows.plan.cat.codes]).astype(np.float32)[30:]
    phi = state.predictor.features(torch.from_numpy(x))[:, :-1].numpy()
    truth = LogisticRegression(C=1 / 20, tol=1e-12, max_iter=5000).fit(phi, y[30:])
    distance = np.linalg.norm(state.w.numpy() - np.concatenate([truth.coef_[0], truth.intercept_]))
    assert distance <= second.certificate.bound + 1e-5


def test_the_head_of_a_forest_is_trained_on_its_leaves(deployment: Deployment) -> None:
    name, (x, y) = f"forest-{uuid.uuid4().hex[:8]}", problem(300)
    y = np.where(y == 1, "yes", "no")
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(x, y)
    with Client(deployment.url, deployment.admin_key) as client:
        job = client.wait(client.import_model(name, forest, {"x": x, "y": y}))
        assert job.message == "Version 1 trained on changes 1-300 with imported splits; promoted."
        version = client.version(name, 1)
        means = client.predict(name, x[:100].tolist()).to_numpy()[:, 1]
    assert version.method == "imported"
    slots = deployment.state(name).predictor.encode(torch.from_numpy(x.astype(np.float32))).numpy()
    leaves = forest.apply(x)
    for tree in range(8):  # rows share a leaf of the forest where they share a slot
        assert len({*zip(leaves[:, tree], slots[:, tree], strict=True)}) == len(set(leaves[:, tree]))
    assert np.corrcoef(means, forest.predict_proba(x[:100])[:, 1])[0, 1] > 0.9


def test_a_forest_of_two_classes_keeps_its_probabilities_and_is_adapted(deployment: Deployment) -> None:
    name, (x, y) = f"forest-{uuid.uuid4().hex[:8]}", problem(300)
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(x, y)
    ridge = {"kind": "l2", "delta": 5.0, "penalize_bias": False}
    with Client(deployment.url, deployment.admin_key) as client:
        client.wait(client.import_model(name, forest, {"x": x, "y": y}, regularizer=ridge))
        means = client.predict(name, x[:100].tolist()).to_numpy()
        client.wait(client.remove_examples(name, [f"row-{i}" for i in range(20)]))
        first, second = client.version(name, 1), client.version(name, 2)
    assert (first.method, second.method) == ("imported", "kprior")
    assert np.abs(means - forest.predict_proba(x[:100])[:, 1]).max() < 1e-6
    state = deployment.state(name)
    phi = state.predictor.features(torch.from_numpy(x[20:].astype(np.float32)))[:, :-1].numpy()
    truth = Ridge(5.0, tol=1e-12).fit(phi, y[20:])
    assert second.certificate is not None
    distance = np.linalg.norm(state.w.numpy() - [*truth.coef_, truth.intercept_])
    assert distance <= second.certificate.bound + 1e-5


def test_an_erasure_from_imported_trees_waits_until_the_policy_permits_other_splits(deployment: Deployment) -> None:
    name, (x, y) = f"forest-{uuid.uuid4().hex[:8]}", problem(300)
    person = f"person of {name}"
    forest = RandomForestClassifier(4, max_depth=3, random_state=0).fit(x, y)
    subjects = [person if i < 10 else None for i in range(300)]
    with Client(deployment.url, deployment.admin_key) as client:
        client.wait(client.import_model(name, forest, {"x": x, "y": y, "subject": subjects}))
        client.wait(client.remove_examples(name, ["row-20"]))
        splits = deployment.state(name).predictor.constants()
        erasure = client.erase(person)
        with pytest.raises(ErasureFailed, match="encoder_required.*policy.erasure.retrain"):
            client.wait_for_erasure(erasure)
        client.change_policy(name, {"erasure": {"retrain": True}})
        deployment.post(f"/v1/erasures/{erasure.id}/retry")
        done = client.wait_for_erasure(erasure)
        assert done.state == "completed"
    [part] = deployment.get(f"/v1/erasures/{erasure.id}/receipt")["models"]
    assert (part["method"], part["encoder"]) == ("retrained", {"kind": "trees", "trained_on": "examples"})
    assert "traces" not in part["words"]
    others = deployment.state(name).predictor.constants()
    assert any(not torch.equal(splits[key], others[key]) for key in splits if splits[key].shape == others[key].shape)
