"""Predictions agree with an independent computation from the weights; which version predicts."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors import numpy as safetensors
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from core.models import catalog
from core.tables.jobs import Job, JobState
from core.tables.versions import VersionState
from core.versions.queries import find_version
from tests.service.expect import JSON, add, refused, rows, soon
from tests.stack import Stack

X = np.random.default_rng(0).normal(size=(40, 2)).round(3)
SCORE = X @ [1.0, -2.0] + 0.3
TARGETS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "binary": ({"kind": "binary"}, (SCORE > 0).astype(int).tolist()),
    "classes": (
        {"kind": "classes", "values": ["low", 7, "high"]},
        [["low", 7, "high"][int(np.digitize(s, [-1, 1]))] for s in SCORE],
    ),
    "number": ({"kind": "number"}, (SCORE + 0.1 * X[:, 0] ** 2).round(3).tolist()),
    "count": ({"kind": "count"}, np.exp(SCORE / 3).round().astype(int).tolist()),
}


def trained(stack: Stack, api: httpx.Client, xs: list[Any], ys: list[Any], **spec: Any) -> str:
    name = stack.model(policy={"holdout": 0}, **spec)
    add(api, name, [{"id": str(i), "x": x, "y": y} for i, (x, y) in enumerate(zip(xs, ys, strict=True))])
    stack.train(name)
    return name


def predict(api: httpx.Client, name: str, inputs: Any, **more: Any) -> list[dict[str, Any]]:
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["outputs"]) == len(inputs)
    outputs: list[dict[str, Any]] = answer.json()["outputs"]
    return outputs


def weights(api: httpx.Client, name: str, version: int = 1) -> dict[str, np.ndarray]:
    return safetensors.load(api.get(f"/v1/models/{name}/versions/{version}/weights").raise_for_status().content)


def means(outputs: list[dict[str, Any]]) -> np.ndarray:
    return np.array([output["mean"] for output in outputs])


def with_one(x: Any) -> np.ndarray:
    flat = np.float32(x).reshape(len(x), -1).astype(float)
    return np.hstack([flat, np.ones((len(flat), 1))])


@pytest.mark.parametrize("kind", TARGETS)
def test_predictions_are_what_the_downloaded_weights_say(stack: Stack, api: httpx.Client, kind: str) -> None:
    target, ys = TARGETS[kind]
    name = trained(stack, api, X.tolist(), ys, target=target)
    outputs = predict(api, name, X.tolist())
    w = weights(api, name)["w"]
    if kind == "classes":
        p = softmax(with_one(X) @ w.reshape(3, 3).T, axis=1)
        assert [output.keys() for output in outputs] == [{"class", "probabilities"}] * len(X)
        np.testing.assert_allclose([list(o["probabilities"].values()) for o in outputs], p, rtol=1e-9)
        assert list(outputs[0]["probabilities"]) == ["low", "7", "high"]
        assert [o["class"] for o in outputs] == [["low", 7, "high"][i] for i in p.argmax(1)]
        return
    link = {"binary": expit, "number": lambda f: f, "count": np.exp}[kind]
    np.testing.assert_allclose(means(outputs), link(with_one(X) @ w), rtol=1e-9)
    if kind == "binary":
        assert [o["class"] for o in outputs] == (means(outputs) > 0.5).astype(int).tolist()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_linear_model_predicts_what_scikit_learn_does(stack: Stack, api: httpx.Client, kind: str) -> None:
    target, ys = TARGETS[kind]
    delta = 2.0
    name = trained(stack, api, X.tolist(), ys, target=target, regularizer={"kind": "l2", "delta": delta})
    outputs = predict(api, name, X.tolist())
    seen = X.astype(np.float32).astype(float)
    if kind in ("binary", "classes"):
        names = [str(y) for y in ys]
        p = (model := LogisticRegression(C=1 / delta, tol=1e-10, max_iter=1000).fit(seen, names)).predict_proba(seen)
        if kind == "binary":
            np.testing.assert_allclose(means(outputs), p[:, 1], atol=1e-5)
        else:
            ours = [[o["probabilities"][c] for c in model.classes_] for o in outputs]
            np.testing.assert_allclose(ours, p, atol=1e-5)
    elif kind == "number":
        np.testing.assert_allclose(means(outputs), Ridge(alpha=delta).fit(seen, ys).predict(seen), atol=1e-8)
    else:
        poisson = PoissonRegressor(alpha=delta / len(X), tol=1e-10, max_iter=1000).fit(seen, ys)
        np.testing.assert_allclose(means(outputs), poisson.predict(seen), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_an_image_is_read_in_its_shape(stack: Stack, api: httpx.Client, dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 256, size=(20, 1, 2, 2))
    ys = (x.sum((1, 2, 3)) > 510).astype(int).tolist()
    name = trained(stack, api, x.tolist(), ys, input={"kind": "image", "shape": [1, 2, 2], "dtype": dtype})
    scale = 255 if dtype == "uint8" else 1
    expected = expit(with_one(x / scale) @ weights(api, name)["w"])
    np.testing.assert_allclose(means(predict(api, name, x.tolist())), expected, rtol=1e-4)


TABLE = {
    "kind": "table",
    "columns": [{"name": "age", "type": "number"}, {"name": "job", "type": "category", "values": ["a", 2]}],
}


def test_a_table_is_standardised_and_missing_values_have_weights_of_their_own(stack: Stack, api: httpx.Client) -> None:
    ages = [20.0, 30.0, None, 50.0, 60.0, None, 80.0, 90.0]
    jobs = ["a", 2, None, "a", "new", "a", None, 2]
    xs = [{"age": age, "job": job} for age, job in zip(ages, jobs, strict=True)]
    name = trained(stack, api, xs, [0, 0, 1, 0, 1, 1, 1, 1], input=TABLE)
    # in round units: nobody's age can be worked out from them
    known = np.array([age for age in ages if age is not None])
    scale = 2.0 ** np.round(np.log2(known.std()))
    middle = np.round(known.mean() / (scale / 4)) * (scale / 4)
    columns = [
        [
            0 if age is None else (age - middle) / scale,
            age is None,
            job == "a",
            job == 2,
            job not in ("a", 2, None),
            job is None,
            1,
        ]
        for age, job in zip(ages, jobs, strict=True)
    ]
    expected = expit(np.array(columns, float) @ weights(api, name)["w"])
    np.testing.assert_allclose(means(predict(api, name, xs)), expected, rtol=1e-9)


def test_a_network_predicts_what_its_layers_say(stack: Stack, api: httpx.Client) -> None:
    spec = {"architecture": {"kind": "mlp", "hidden": [3]}, "target": {"kind": "number"}}
    name = trained(stack, api, X.tolist(), TARGETS["number"][1], **spec)
    w = weights(api, name)["w"].astype(float)
    hidden = np.maximum(X @ w[:6].reshape(3, 2).T + w[6:9], 0)
    np.testing.assert_allclose(means(predict(api, name, X.tolist())), hidden @ w[9:12] + w[12], rtol=1e-4, atol=1e-5)


def test_monomials_up_to_the_degree_are_features(stack: Stack, api: httpx.Client) -> None:
    spec = {"architecture": {"kind": "linear", "degree": 2}, "target": {"kind": "number"}}
    name = trained(stack, api, X.tolist(), TARGETS["number"][1], **spec)
    a, b = X.astype(np.float32).astype(float).T
    phi = np.stack([a, b, a * a, a * b, b * b, np.ones_like(a)], 1)
    np.testing.assert_allclose(means(predict(api, name, X.tolist())), phi @ weights(api, name)["w"], rtol=1e-9)


def small_model(stack: Stack, api: httpx.Client, versions: int = 1) -> str:
    """A model whose versions differ."""
    name = stack.model()
    for i in range(versions):
        add(api, name, [{"id": f"{i}-{j}", "x": [j, i], "y": (j + i) % 2, "split": "train"} for j in range(5 + i)])
        stack.train(name)
    return name


def test_the_response_has_the_version(stack: Stack, api: httpx.Client) -> None:
    answer = api.post(f"/v1/models/{small_model(stack, api)}/predictions", json={"inputs": [[0, 0]]}).json()
    assert answer.keys() == {"version", "outputs"}
    assert answer["version"] == 1


def test_a_given_version_predicts(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api, 2)
    both = {v: predict(api, name, [[1, 1]], version=v) for v in (1, 2)}
    assert both[1] != both[2] == predict(api, name, [[1, 1]], version=None)


def test_a_rollback_is_served_at_once(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api, 2)
    path = f"/v1/models/{name}/predictions"
    assert api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 2
    api.post(f"/v1/models/{name}/versions/1/promote").raise_for_status()
    assert api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 1


def test_a_champion_made_by_another_process_is_served_soon(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api)
    path = f"/v1/models/{name}/predictions"
    assert api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 1
    add(api, name, rows(4))
    stack.train(name)
    assert soon(lambda: api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 2, 2.0)


TOLD = {
    "the model": "/v1/models/{name}",
    "the models": "/v1/models?limit=1000",
    "the version": "/v1/models/{name}/versions/2",
    "the versions": "/v1/models/{name}/versions",
    "the promotions": "/v1/models/{name}/promotions",
    "the job": "/v1/jobs/{job}",
    "the job, waited for": "/v1/jobs/{job}?wait=5",
    "the jobs": "/v1/jobs?model={name}",
}


@pytest.mark.parametrize("told", TOLD)
def test_predictions_come_from_a_champion_once_a_response_has_named_it(
    stack: Stack, api: httpx.Client, told: str
) -> None:
    name = small_model(stack, api)
    path = f"/v1/models/{name}/predictions"
    job = api.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"]
    add(api, name, rows(4))
    assert api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 1
    stack.train(name)
    with stack.database.write() as session:
        session.get_one(Job, job).state = JobState.SUCCEEDED
    api.get(TOLD[told].format(name=name, job=job)).raise_for_status()
    assert api.post(path, json={"inputs": [[1, 1]]}).json()["version"] == 2


def test_a_model_without_a_champion_cannot_predict(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    refused(api.post(f"/v1/models/{name}/predictions", json={"inputs": [[1, 1]]}), 409, "champion_missing")


def test_a_purged_version_does_not_predict(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api, 2)
    body = {"inputs": [[1, 1]], "version": 1}
    assert api.post(f"/v1/models/{name}/predictions", json=body).status_code == 200
    with stack.database.write() as session:
        find_version(session, catalog.find(session, name, None), 1).state = VersionState.PURGED
    path = f"/v1/models/{name}/predictions"
    assert soon(lambda: api.post(path, json=body).status_code == 409, 2.0)
    refused(api.post(path, json=body), 409, "version_purged")


def test_a_version_whose_file_is_not_in_the_store_is_unavailable(stack: Stack, api: httpx.Client) -> None:
    name = small_model(stack, api)
    with stack.database.read() as session:
        file = find_version(session, catalog.find(session, name, None), 1).file
    (stack.folder / "home" / "artifacts" / file).unlink()
    refused(api.post(f"/v1/models/{name}/predictions", json={"inputs": [[1, 1]]}), 503, "version_missing")
    refused(api.get(f"/v1/models/{name}/versions/1/weights"), 503, "version_missing")


SAME = ['{"inputs": [[1, 2]]}', '{"inputs": [[1]]}', '{"inputs": []}', "{", '{"inputs": [[1, 2]], "version": 9}', ""]


@pytest.mark.parametrize("body", SAME)
def test_a_known_caller_gets_the_answer_that_a_new_one_gets(stack: Stack, api: httpx.Client, body: str) -> None:
    """Known callers are answered on a shorter way."""
    path = f"/v1/models/{small_model(stack, api)}/predictions"
    with stack.client(stack.key("read")) as holder:
        new, known = (holder.post(path, content=body, headers=JSON) for _ in range(2))
    assert (new.status_code, new.json()) == (known.status_code, known.json())
    assert new.headers.keys() == known.headers.keys()


def test_a_known_caller_is_held_to_scope_models_and_revocation(stack: Stack, api: httpx.Client) -> None:
    name, other = small_model(stack, api), stack.model()
    path, body = f"/v1/models/{name}/predictions", {"inputs": [[1, 2]]}
    keys = {403: stack.key("ingest"), 404: stack.key("read", models=[other]), 200: stack.key("read")}
    for status, key in keys.items():
        with stack.client(key) as holder:
            assert [holder.post(path, json=body).status_code for _ in range(3)] == [status] * 3
    with stack.client(keys[200]) as holder:
        api.delete(f"/v1/keys/{keys[200].split('_')[1]}").raise_for_status()
        refused(holder.post(path, json=body), 401, "key_unknown")
