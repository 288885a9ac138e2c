"""Kernel models from end to end: a linear model becomes one, examples go, somebody is erased, a network follows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.kprior.oracles import random_features
from tests.worker.deployment import DIM, Deployment
from tests.worker.erasure_helpers import ask, wait_for_end
from tests.worker.sklearn_oracle import fit

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

KERNEL = {"kind": "kernel", "kernel": "rbf", "features": 64, "lengthscale": 2.0, "seed": 3}
PERSON = "somebody near a boundary"


def test_a_kernel_model_is_adapted_certified_erased_and_left(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, DIM)).astype(np.float32)
    y = (rng.random(600) < 1 / (1 + np.exp(-4 * np.sin(2 * x[:, 0]) * x[:, 1]))).astype(int)
    name = deployment.new_model()
    deployment.add_examples(name, x[:10], y[:10], split="train", subject=PERSON)
    deployment.add_examples(name, x[10:], y[10:], first=10, split="train")
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/changes", {"architecture": KERNEL})
    deployment.adapted(name)
    deployment.remove(name, range(30, 50))
    deployment.adapted(name)
    deployment.settled(name)
    phi = random_features(x.astype(float), KERNEL)
    left = [i for i in range(600) if not 30 <= i < 50]
    for rows in (left, left[10:]):
        version = deployment.champion(name)
        certificate = version["certificate"]
        assert version["kind"] == "adapted"
        assert certificate["relative"] <= 0.01
        truth = fit("binary", phi[rows], y[rows], 1.0).reshape(-1)
        assert np.linalg.norm(deployment.weights(name) - truth) <= certificate["bound"] + 1e-4
        assess(deployment, name, x[:3])
        if rows is left:
            assert wait_for_end(deployment, ask(deployment, PERSON))["state"] == "completed"
    deployment.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "mlp", "hidden": [8]}})
    deployment.adapted(name)
    assert deployment.champion(name)["spec"]["architecture"]["kind"] == "mlp"
    assess(deployment, name, x[:3])


def assess(deployment: Deployment, name: str, x: np.ndarray) -> None:
    """Whatever made the champion, it says how sure it is."""
    body = {"inputs": x.tolist(), "uncertainty": True}
    for output in deployment.post(f"/v1/models/{name}/predictions", body)["outputs"]:
        assert 0 < output["interval"][0] < output["mean"] < output["interval"][1] < 1
        assert output["std"] > 0
