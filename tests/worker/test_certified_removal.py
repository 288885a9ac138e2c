"""Models that were created with a promise of certified removal, from end to end."""

from __future__ import annotations

import math

import msgspec
import pytest

from amend import responses
from tests.worker.deployment import Deployment, problem

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

PROMISE = {"epsilon": 1.0, "delta": 1e-3, "sigma": 2.0}
PENALISED = {"kind": "l2", "delta": 1.0, "penalize_bias": True}


def test_every_version_shows_how_much_of_the_allowed_residual_it_uses(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(training={"removal": PROMISE}, regularizer=PENALISED), problem(300)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    removal = deployment.post(f"/v1/models/{name}/removals", {"ids": [f"e{i}" for i in range(30)]})
    assert deployment.ended(removal["job"])["state"] == "succeeded"
    versions = deployment.get(f"/v1/models/{name}/versions")["items"]
    assert [v["kind"] for v in versions] == ["adapted", "trained"]
    for version in versions:
        shown = version["certificate"]["removal"]
        assert shown["gradient_limit"] == 2.0 / math.sqrt(2 * math.log(1.5 / 1e-3))
        assert 0 <= shown["gradient_norm"] <= shown["gradient_limit"]
    assert (versions[0]["certificate"]["relative"]) <= 0.01
    told = msgspec.convert(versions[0], responses.Version).certificate
    assert told is not None
    assert told.removal == msgspec.convert(versions[0]["certificate"]["removal"], responses.RemovalPromise)


def test_it_is_promised_only_where_it_exists(deployment: Deployment) -> None:
    with deployment.client() as client:
        body = {"name": "no-promise", "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
        for wrong in ({}, {"regularizer": PENALISED, "architecture": {"kind": "mlp", "hidden": [4]}}):
            answer = client.post("/v1/models", json={**body, "training": {"removal": PROMISE}, **wrong})
            assert (answer.status_code, answer.json()["code"]) == (422, "spec_invalid")
