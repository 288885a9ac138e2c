"""Models that somebody already has, brought by either client: predictions, certificates, later changes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

from amend import Client, Conflict, ErasureFailed, EstimatorUnsupported, Invalid, NotFound
from amend.estimators import compose, describe_inputs
from core.models import catalog
from core.tables.versions import ImportedWeights
from tests.amend.estimators.rows import arrays, frame
from tests.amend.estimators.shop import COLUMNS, COLUMNWISE, COMPUTED, NUMERIC, orders
from tests.amend.estimators.test_pipelines import expected, refitted
from tests.amend.estimators.test_torch_modules import rows_of, trained
from tests.amend.operations.data import INPUT, QUIET, TARGET, columns
from tests.worker.deployment import Deployment
from tests.worker.texts import reviews

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def fresh_name() -> str:
    return f"imported-{uuid.uuid4().hex[:8]}"


def means(client: Client, name: str, inputs: Any) -> Any:
    return [output.mean for output in client.predict(name, inputs).outputs]


def test_a_pipeline_becomes_the_first_version_and_is_adapted(client: Client, deployment: Deployment) -> None:
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


def test_an_erasure_leaves_imported_columns_unscaled(client: Client) -> None:
    name, rows = fresh_name(), frame(200, "binary").drop(columns="plan")
    rows = rows.assign(age=rows.age / 10, pay=rows.pay / 300, subject=[f"u{i}-of-{name}" for i in range(200)])
    fit, features = LogisticRegression(C=0.05, tol=1e-10, max_iter=5000), ["age", "pay"]
    client.wait(client.import_model(name, fit.fit(rows[features], rows.y), rows, policy=QUIET))
    client.wait_for_erasure(client.erase(f"u3-of-{name}"))
    left = rows.drop(index=rows.index[3])
    truth = fit.fit(left[features], left.y).predict_proba(rows[features])[:, 1]
    np.testing.assert_allclose(means(client, name, rows[features]), truth, atol=2e-3)


@pytest.mark.parametrize("case", ["imputer, scaler, one-hot", "splines", "log target", "SGD", "ridge classifier"])
def test_a_pipeline_keeps_its_predictions_and_a_removal_brings_it_to_a_refitted_head(
    client: Client, case: str, tmp_path: Path
) -> None:
    """Through REST and ONNX, with gaps and unseen values; the head of the SGD is far from its optimum at first."""
    name, target = fresh_name(), "cost" if case == "log target" else "returned"
    make = NUMERIC[case][1] if case in NUMERIC else (COLUMNWISE | COMPUTED)[case]
    rows, test = (orders(n, seed, gaps=True).loc[:, [*COLUMNS, target]] for n, seed in ((300, 0), (60, 1)))
    test.loc[:5, "colour"] = "green"
    estimator = make().fit(rows[COLUMNS], rows[target])
    job = client.import_model(name, estimator, rows, target=target, holdout=test, policy=QUIET)
    client.wait(job)
    counts = client.model(name).counts
    assert (counts.train, counts.holdout) == (300, 60)
    np.testing.assert_allclose(means(client, name, test[COLUMNS]), expected(estimator, test), rtol=1e-6, atol=1e-6)
    first = client.version(name, 1)
    assert (first.method, first.state) == ("imported", "champion")
    assert first.certificate is not None

    removed = client.remove_examples(name, [f"row-{i}" for i in range(30)])
    assert removed.job is not None
    assert client.wait(removed.job).version == 2
    second = client.version(name, 2).certificate
    assert second is not None
    assert second.relative is not None
    assert second.relative <= 0.01
    y = rows.rename(columns={target: "y"})
    truth = expected(refitted(estimator, y.iloc[30:], y), test)
    far = np.abs(means(client, name, test[COLUMNS]) - truth).max() / np.abs(truth).max()
    assert far < 5e-3


def test_a_module_with_batch_norm_keeps_its_predictions_and_a_retrain_computes_its_statistics(client: Client) -> None:
    name, target = fresh_name(), {"kind": "binary"}
    rows = rows_of((4,), target, 120)
    layers = (torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.GELU(), torch.nn.Linear(6, 1))
    module = trained(torch.nn.Sequential(*layers), torch.tensor(rows["x"]))
    client.wait(client.import_model(name, module, rows, outputs=target, policy=QUIET))
    with torch.no_grad():
        wanted = torch.sigmoid(module(torch.tensor(rows["x"])))[:, 0].numpy()
    np.testing.assert_allclose(client.predict(name, rows["x"]).to_numpy(), wanted, atol=1e-6)
    client.add_examples(name, {"id": [f"n{i}" for i in range(40)], "x": rows["x"][:40] + 1, "y": rows["y"][:40]})
    assert client.wait(client.adapt(name)).version == 2
    assert client.wait(client.retrain(name)).version == 3
    first, third = (load(client.weights(name, number)) for number in (1, 3))
    mean = "body.1.running_mean"
    assert torch.equal(first[mean], module[1].running_mean)
    assert not torch.equal(third[mean], first[mean])


def test_a_module_with_a_frozen_body_keeps_its_predictions_and_its_head_is_certified(client: Client) -> None:
    name, target = fresh_name(), {"kind": "binary"}
    rows = rows_of((4,), target, 120)
    body = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.GELU())
    module = trained(torch.nn.Sequential(body, torch.nn.Linear(6, 1)), torch.tensor(rows["x"]))
    body.requires_grad_(False)
    client.wait(client.import_model(name, module, rows, outputs=target, policy=QUIET, trained_on="other"))
    with torch.no_grad():
        wanted = torch.sigmoid(module(torch.tensor(rows["x"])))[:, 0].numpy()
        features = body(torch.tensor(rows["x"])).double().numpy()[1:]
    np.testing.assert_allclose(client.predict(name, rows["x"]).to_numpy(), wanted, atol=1e-6)
    assert client.model(name).architecture["encoder"]["trained_on"] == "other"
    client.wait(client.remove_examples(name, ["row-0"]))
    certificate = client.version(name, 2).certificate
    assert certificate is not None
    assert certificate.bound is not None
    assert certificate.scope == "head"
    fit = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(features, rows["y"][1:])
    w = load(client.weights(name, 2))["w"].numpy()
    assert np.linalg.norm(w - np.append(fit.coef_[0], fit.intercept_)) <= certificate.bound + 1e-5


def test_an_erasure_says_that_the_steps_of_a_pipeline_were_fitted_on_the_data(client: Client) -> None:
    name = fresh_name()
    rows = orders(200, gaps=True).loc[:, [*COLUMNS, "returned"]]
    rows = rows.assign(subject=[f"u{i}-of-{name}" for i in range(200)])
    estimator = COMPUTED["splines"]().fit(rows[COLUMNS], rows.returned)
    client.wait(client.import_model(name, estimator, rows, target="returned", policy=QUIET))
    with pytest.raises(ErasureFailed, match="encoder_required.*import the refitted pipeline as a new model"):
        client.wait(client.erase(f"u3-of-{name}"))
    client.change_policy(name, {"erasure": {"encoder": "report"}})
    done = client.wait(client.erase(f"u4-of-{name}"))
    assert done is not None
    receipt = client.receipt(done.id)
    assert receipt["models"][0]["encoder"]["kind"] == "steps"
    assert receipt["models"][0]["encoder"]["trained_on"] == "examples"


OTHER_STEPS: dict[str, Any] = {
    "tfidf": lambda: make_pipeline(TfidfVectorizer(), LogisticRegression(C=5, tol=1e-8, max_iter=5000)),
    "hashing": lambda: make_pipeline(HashingVectorizer(n_features=4096), LogisticRegression(C=5)),
    "quantiles": lambda: make_pipeline(
        ColumnTransformer([("n", QuantileTransformer(n_quantiles=20), ["price"]), ("c", OneHotEncoder(), ["colour"])]),
        LogisticRegression(tol=1e-8, max_iter=5000),
    ),
}


@pytest.mark.parametrize("kind", OTHER_STEPS)
def test_other_steps_become_a_frozen_encoder(client: Client, deployment: Deployment, kind: str) -> None:
    name = fresh_name()
    if kind == "quantiles":
        rows = orders(200, gaps=False).rename(columns={"returned": "y"})[["price", "colour", "y"]]
        x = rows.drop(columns="y")
    else:
        texts, labels = reviews(200)
        rows = pd.DataFrame({"review": [text.title() for text in texts], "y": labels})
        x = rows.review
    estimator = OTHER_STEPS[kind]().fit(x, rows.y)
    client.wait(client.import_model(name, estimator, rows, policy=QUIET))
    version, encoder = client.version(name, 1), client.model(name).architecture["encoder"]
    assert (version.method, encoder["kind"]) == ("imported", "hashing" if kind == "hashing" else "onnx")
    assert encoder.get("trained_on", "other") == ("other" if kind == "hashing" else "examples")
    inputs = rows.drop(columns="y")
    np.testing.assert_allclose(means(client, name, inputs), estimator.predict_proba(x)[:, 1], atol=1e-6)
    client.wait(client.remove_examples(name, [f"row-{i}" for i in range(20)]))
    certificate = client.version(name, 2).certificate
    assert certificate is not None
    assert certificate.scope == "head"
    assert certificate.bound is not None
    features = estimator[:-1].transform(x)[20:]
    truth = clone(estimator[-1]).set_params(tol=1e-10, max_iter=5000).fit(features, rows.y[20:])
    apart = np.linalg.norm(deployment.weights(name) - np.append(truth.coef_[0], truth.intercept_))
    assert apart <= certificate.bound + 1e-4


def test_steps_whose_conversion_differs_are_refused(client: Client) -> None:
    texts, labels = reviews(50)
    rows = pd.DataFrame({"text": ["a b, \u00fcber-gut " + text for text in texts], "y": labels})
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(rows.text, rows.y)
    with pytest.raises(EstimatorUnsupported, match="gives other features. Use token_pattern"):
        client.import_model(fresh_name(), estimator, rows)


def test_weights_that_are_far_off_stay_as_they_are_until_the_next_change(client: Client) -> None:
    name, rows = fresh_name(), arrays(200, "binary")
    fit = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(rows["x"], 1 - rows["y"])
    fit.coef_ *= 1e3
    client.wait(client.import_model(name, fit, rows, policy=QUIET))
    version = client.version(name, 1)
    assert version.method == "imported"
    assert version.certificate is not None
    assert version.certificate.relative is None  # too far away for a bound
    np.testing.assert_allclose(means(client, name, rows["x"]), fit.predict_proba(rows["x"])[:, 1], atol=1e-6)
    removed = client.remove_examples(name, ["row-0"])
    assert removed.job is not None
    client.wait(removed.job)
    certificate = client.version(name, 2).certificate
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


def test_the_certificate_of_an_estimator_that_was_stopped_early_covers_its_distance_to_the_optimum(
    client: Client, deployment: Deployment
) -> None:
    rows, name = arrays(300, "binary"), fresh_name()
    rough = LogisticRegression(C=0.5, tol=3e-2, max_iter=5000).fit(rows["x"], rows["y"])
    truth = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(rows["x"], rows["y"])
    client.wait(client.import_model(name, rough, rows, policy=QUIET))
    np.testing.assert_allclose(means(client, name, rows["x"]), rough.predict_proba(rows["x"])[:, 1], atol=1e-6)
    certificate = client.version(name, 1).certificate
    assert certificate is not None
    assert certificate.bound is not None
    best = np.append(truth.coef_[0], truth.intercept_)
    assert 1e-3 < np.linalg.norm(deployment.weights(name) - best) <= certificate.bound + 1e-6


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


def test_people_erased_before_a_job_are_in_no_version(client: Client, deployment: Deployment) -> None:
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
