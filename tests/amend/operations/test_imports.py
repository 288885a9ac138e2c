"""Models that somebody already has, brought by either client: predictions, certificates, later changes."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from amend import Client, Conflict, Invalid, NotFound
from amend.estimators import compose, describe_inputs
from core.models import catalog
from core.tables.versions import ImportedWeights
from tests.amend.estimators.rows import arrays, frame
from tests.amend.operations.data import INPUT, QUIET, TARGET, columns
from tests.worker.deployment import Deployment

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def fresh_name() -> str:
    return f"imported-{uuid.uuid4().hex[:8]}"


def means(client: Client, name: str, inputs: Any) -> Any:
    return [output.mean for output in client.predict(name, inputs).outputs]


def test_a_pipeline_becomes_the_first_version_and_goes_on_from_there(client: Client, deployment: Deployment) -> None:
    name, rows = fresh_name(), frame(300, "binary")
    rows = rows.assign(left=rows.pop("y"), id=[f"e{i}" for i in range(300)], subject=[f"u{i}" for i in range(300)])
    features = ["age", "plan", "pay"]
    encoder = ColumnTransformer([("plan", OneHotEncoder(), ["plan"]), ("rest", StandardScaler(), ["age", "pay"])])
    fit = LogisticRegression(C=0.5, tol=1e-8, max_iter=5000)
    pipeline = make_pipeline(encoder, fit).fit(rows[features], rows.left)
    job = client.wait(client.import_model(name, pipeline, rows, target="left", policy=QUIET))
    assert "from imported weights" in job.message
    version = client.version(name, 1)
    assert (version.kind, version.method, version.state) == ("trained", "imported", "champion")
    assert version.cost.data_passes == 1
    assert version.certificate is not None
    assert version.certificate.relative is not None
    assert version.certificate.relative < 1e-3
    assert client.model(name).counts.train == 300  # none was put aside: it would be another fit
    probabilities = pipeline.predict_proba(rows[features])[:, 1]
    np.testing.assert_allclose(means(client, name, rows[features]), probabilities, atol=1e-5)
    with deployment.database.read() as session:
        assert session.get(ImportedWeights, catalog.find(session, name, None).id) is None

    removed = client.remove_examples(name, [f"e{i}" for i in range(20)])
    assert removed.job is not None
    client.wait(removed.job)
    left = rows.iloc[20:]
    truth = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(encoder.transform(left[features]), left.left)
    found = {c.feature: c.standardised for c in client.coefficients(name, 2)}
    ours = [found[f] for f in ("plan = free", "plan = paid", "plan = trial", "age", "pay", "(intercept)")]
    certificate = client.version(name, 2).certificate
    assert certificate is not None
    assert certificate.bound is not None
    apart = np.linalg.norm(np.array(ours) - np.append(truth.coef_[0], truth.intercept_))
    assert apart <= certificate.bound + 1e-5
    assert certificate.bound < 0.05 * np.linalg.norm(ours)


def test_an_erasure_leaves_columns_that_came_without_a_scaler_as_they_are(client: Client) -> None:
    name, rows = fresh_name(), frame(200, "binary").drop(columns="plan")
    rows = rows.assign(age=rows.age / 10, pay=rows.pay / 300, subject=[f"u{i}-of-{name}" for i in range(200)])
    fit, features = LogisticRegression(C=0.05, tol=1e-10, max_iter=5000), ["age", "pay"]
    client.wait(client.import_model(name, fit.fit(rows[features], rows.y), rows, policy=QUIET))
    client.wait_for_erasure(client.erase(f"u3-of-{name}"))
    left = rows.drop(index=rows.index[3])
    truth = fit.fit(left[features], left.y).predict_proba(rows[features])[:, 1]
    np.testing.assert_allclose(means(client, name, rows[features]), truth, atol=2e-3)


def test_weights_that_are_far_off_are_trained_instead(client: Client) -> None:
    name, rows = fresh_name(), arrays(200, "binary")
    fit = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(rows["x"], 1 - rows["y"])
    fit.coef_ *= 1e6
    job = client.wait(client.import_model(name, fit, rows, policy=QUIET))
    certificate = client.version(name, job.version or 0).certificate
    assert certificate is not None
    assert certificate.relative is not None
    assert certificate.relative <= 0.01


def test_a_network_becomes_the_first_version(client: Client, deployment: Deployment) -> None:
    name, rows = fresh_name(), arrays(200, "classes")
    network = MLPClassifier(hidden_layer_sizes=(6,), max_iter=1000, tol=1e-2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), network).fit(rows["x"], rows["y"])
    client.wait(client.import_model(name, pipeline, rows, policy=QUIET))
    outputs = client.predict(name, rows["x"]).outputs
    found = [[output.probabilities[str(c)] for c in pipeline.classes_] for output in outputs if output.probabilities]
    np.testing.assert_allclose(found, pipeline.predict_proba(rows["x"]), atol=1e-5)
    removed = client.remove_examples(name, ["row-0"])
    assert removed.job is not None
    assert client.wait(removed.job).version == 2


def test_an_estimator_that_was_stopped_early_is_refined_if_the_policy_requires_it(
    client: Client, deployment: Deployment
) -> None:
    rows = arrays(300, "binary")
    rough = LogisticRegression(C=0.5, tol=1e3, max_iter=5000).fit(rows["x"], rows["y"])
    truth = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(rows["x"], rows["y"])
    kept, refined = fresh_name(), fresh_name()
    client.wait(client.import_model(kept, rough, rows, policy={**QUIET, "certify": "never"}))
    client.wait(client.import_model(refined, rough, rows, policy=QUIET))
    np.testing.assert_allclose(means(client, kept, rows["x"]), rough.predict_proba(rows["x"])[:, 1], atol=1e-5)
    certificate = client.version(refined, 1).certificate
    assert certificate is not None
    assert certificate.bound is not None
    best = np.append(truth.coef_[0], truth.intercept_)
    assert np.linalg.norm(deployment.weights(refined) - best) <= certificate.bound + 1e-6
    assert certificate.bound <= 0.01 * np.linalg.norm(best)


def test_a_rejected_import_leaves_no_model_and_an_interrupted_import_can_continue(
    client: Client, deployment: Deployment
) -> None:
    name, rows = fresh_name(), arrays(60, "binary")
    fit = LogisticRegression(C=0.5).fit(rows["x"], rows["y"])
    with pytest.raises(Invalid):
        client.import_model(name, fit, {**rows, "id": [""] * 60}, policy=QUIET)
    with pytest.raises(NotFound):
        client.model(name)
    # as a call that was killed leaves it: a model, and some of the rows
    made = compose(fit, describe_inputs(rows, "y"), None, None)
    parts = {"architecture": made.architecture, "regularizer": made.regularizer, "policy": QUIET}
    client.create_model(name, made.input, made.target, **parts)
    some = {"id": [f"row-{i}" for i in range(20)], "split": ["train"] * 20}
    client.add_examples(name, {"x": rows["x"][:20], "y": rows["y"][:20], **some})
    client.wait(client.import_model(name, fit, rows, policy=QUIET))
    assert (client.model(name).counts.train, client.version(name, 1).method) == (60, "imported")
    # another model, or one that is trained, is nobody's to go on with
    with pytest.raises(Conflict, match="model_exists"):
        client.import_model(name, fit, rows, policy=QUIET)
    assert client.model(name).champion == 1


def test_wrong_numbers_are_refused(client: Client, deployment: Deployment) -> None:
    name = fresh_name()
    client.create_model(name, INPUT, TARGET, policy=QUIET)
    place = f"/v1/models/{name}/imports"
    with pytest.raises(Conflict, match="nothing_to_train_on"):
        client.request("POST", place, json={"weights": [0.0] * 5})
    client.add_examples(name, columns(40))
    for body, code in (
        ({"weights": [0.0] * 4}, "weights_invalid"),
        ({"weights": []}, "request_invalid"),
        ({"weights": [0.0, "a", 0, 0, 0]}, "request_invalid"),
        ({"weights": [0.0] * 5, "units": {"mean": [0.0], "scale": [1.0]}}, "units_invalid"),
    ):
        with pytest.raises(Invalid) as refused:
            client.request("POST", place, json=body)
        assert refused.value.code == code
        assert refused.value.errors
    with pytest.raises(Invalid):
        client.request("POST", place, content=b'{"weights": [1e999, 0, 0, 0, 0]}', content_type="application/json")
    client.wait(client.adapt(name))
    with pytest.raises(Conflict, match="model_trained"):
        client.request("POST", place, json={"weights": [0.0] * 5})


def test_who_is_erased_before_the_job_is_in_no_version(client: Client, deployment: Deployment) -> None:
    name, rows = fresh_name(), columns(60, subject=[f"{uuid.uuid4().hex}" for _ in range(60)])
    client.create_model(name, INPUT, TARGET, policy={**QUIET, "holdout": 0})
    client.add_examples(name, rows)
    with deployment.worker_held():
        client.request("POST", f"/v1/models/{name}/imports", json={"weights": [9.0] * 5})
        erasure = client.erase(rows["subject"][0])
    client.wait_for_erasure(erasure)
    assert {version.method for version in client.versions(name)} <= {"retrain", "kprior"}
    with deployment.database.read() as session:
        assert session.get(ImportedWeights, catalog.find(session, name, None).id) is None
