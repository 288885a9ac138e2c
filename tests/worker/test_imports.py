"""A model that somebody already has, brought to each database: measured there, and adapted from there."""

from __future__ import annotations

import uuid

import numpy as np
from sklearn.linear_model import LogisticRegression

from amend import Client
from tests.worker.deployment import Deployment, fitted, problem


def test_a_brought_model_is_adapted_within_its_bound_of_a_fit(deployment: Deployment) -> None:
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
