"""Uncertainty agrees with an independent computation from the curvature, and is refused where unavailable."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from scipy.stats import t as student

from amend import Client
from tests.service.bodies import ARROW, stream
from tests.service.expect import refused
from tests.service.test_predictions import TARGETS, X, predict, trained, weights, with_one
from tests.stack import Stack

WIDTH = 1.959964


@pytest.mark.parametrize("kind", TARGETS)
def test_intervals_equal_a_computation_from_the_downloaded_curvature(
    stack: Stack, api: httpx.Client, kind: str
) -> None:
    target, ys = TARGETS[kind]
    name = trained(stack, api, X.tolist(), ys, target=target, regularizer={"kind": "l2", "delta": 2.0})
    plain, outputs = predict(api, name, X.tolist()), predict(api, name, X.tolist(), uncertainty=True)
    assert [{k: v for k, v in o.items() if k not in ("std", "interval")} for o in outputs] == [
        {k: pytest.approx(v) for k, v in o.items()} for o in plain
    ]
    if kind == "classes":
        for output in outputs:
            for value, p in output["probabilities"].items():
                low, high = output["interval"][value]
                assert 0 <= low <= p <= high <= 1
                assert 0 < output["std"][value] < high - low
        return
    tensors = weights(api, name)
    phi, w = with_one(X), tensors["w"]
    covariance = np.linalg.inv(tensors["anchor.curvature.matrix"] + np.diag(tensors["delta"]))
    f, variance = phi @ w, np.einsum("nd,de,ne->n", phi, covariance, phi)
    interval = np.array([output["interval"] for output in outputs])
    if kind == "number":
        curvature = tensors["anchor.curvature.matrix"]
        freedom = len(X) - np.trace(covariance @ curvature)
        noise, width = ((f - ys) ** 2).sum() / freedom, student.ppf(0.975, freedom)
        std = np.sqrt(noise * (1 + variance))
        np.testing.assert_allclose([o["std"] for o in outputs], std, rtol=1e-4)
        np.testing.assert_allclose(interval, np.stack([f - width * std, f + width * std], 1), rtol=1e-3, atol=1e-4)
        return
    reach = WIDTH * np.sqrt(variance)
    mean = expit if kind == "binary" else np.exp
    np.testing.assert_allclose(interval, np.stack([mean(f - reach), mean(f + reach)], 1), rtol=1e-3)


def test_uncertainty_is_available_for_kernels_networks_and_tensors(stack: Stack, api: httpx.Client) -> None:
    ys = TARGETS["number"][1]
    kernel = {"kind": "kernel", "kernel": "rbf", "features": 1200, "lengthscale": 1.0}
    far = [[50.0, 50.0]]
    for architecture in (kernel, {"kind": "mlp", "hidden": [4]}):
        name = trained(stack, api, X.tolist(), ys, target={"kind": "number"}, architecture=architecture)
        near, away = predict(api, name, [X[0].tolist(), *far], uncertainty=True)
        assert 0 < near["std"] < away["std"]
        body: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": X[0].tolist()}]}
        body["outputs"] = [{"name": "interval"}, {"name": "std"}, {"name": "mean"}]
        interval, std, mean = api.post(f"/v2/models/{name}/infer", json=body).json()["outputs"]
        assert (interval["shape"], std["shape"]) == ([1, 2], [1, 1])
        assert interval["data"] == pytest.approx(near["interval"])
        assert (std["data"], mean["data"]) == (pytest.approx([near["std"]]), pytest.approx([near["mean"]]))
        body["outputs"] = [{"name": "spread"}]
        problem = refused(api.post(f"/v2/models/{name}/infer", json=body), 422, "tensor_invalid")
        assert problem["errors"][0]["msg"].endswith("the outputs of this model are mean, std, interval")
        body["outputs"] = []
        assert [one["name"] for one in api.post(f"/v2/models/{name}/infer", json=body).json()["outputs"]] == ["mean"]


def test_the_client_can_request_uncertainty(stack: Stack, api: httpx.Client) -> None:
    target, ys = TARGETS["classes"]
    name = trained(stack, api, X.tolist(), ys, target=target)
    with Client(stack.url, stack.key("read")) as client:
        found = client.predict(name, X, uncertainty=True).outputs[0]
        assert isinstance(found.std, dict)
        assert found.interval is not None
        assert client.predict(name, X).outputs[0].std is None


def test_uncertainty_is_refused_where_it_is_not_available(stack: Stack, api: httpx.Client) -> None:
    target, ys = TARGETS["classes"]
    wide = {"kind": "kernel", "kernel": "rbf", "features": 400}
    name = trained(stack, api, X.tolist(), ys, target=target, architecture=wide)
    body = {"inputs": X[:2].tolist(), "uncertainty": True}
    problem = refused(api.post(f"/v1/models/{name}/predictions", json=body), 422, "uncertainty_unsupported")
    assert problem["errors"][0]["loc"] == ["uncertainty"]
    assert "so many weights" in problem["errors"][0]["msg"]
    assert [one["name"] for one in api.get(f"/v2/models/{name}").json()["outputs"]] == ["class", "probabilities"]
    table = stream(pa.table({"x": X[:2].tolist()}))
    bulk = f"/v1/models/{name}/predictions/bulk?uncertainty=true"
    refused(api.post(bulk, content=table, headers={"Content-Type": ARROW}), 422, "uncertainty_unsupported")
    predict(api, name, X[:2].tolist(), uncertainty=False)
    for wrong in ("laplace", 1, None):
        body["uncertainty"] = wrong  # type: ignore[assignment]
        problem = refused(api.post(f"/v1/models/{name}/predictions", json=body), 422, "request_invalid")
        assert problem["errors"][0]["loc"] == ["uncertainty"]
