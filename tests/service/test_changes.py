"""Changes of the model: another regularizer, another architecture."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import add, refused, rows
from tests.stack import Stack

RIDGE = {"kind": "l2", "delta": 10.0, "penalize_bias": False}


def test_a_change_shows_in_the_model_and_takes_one_position(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    answer = api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE})
    assert answer.status_code == 202
    assert answer.json() == {"position": 1, "job": None}
    model = api.get(f"/v1/models/{name}").json()
    assert (model["regularizer"], model["head"]) == (RIDGE, 1)


def test_both_changes_at_once_take_two_positions(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    body = {"regularizer": RIDGE, "architecture": {"kind": "linear", "degree": 2}}
    assert api.post(f"/v1/models/{name}/changes", json=body).json()["position"] == 2
    assert api.get(f"/v1/models/{name}").json()["architecture"] == body["architecture"]


def test_a_change_of_a_trained_model_is_adapted_to(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(10))
    stack.train(name)
    answer = api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE}).json()
    job = api.get(f"/v1/jobs/{answer['job']}").json()
    assert (job["kind"], job["state"], job["from_position"], job["to_position"]) == ("adapt", "queued", 10, 11)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "request_invalid"),
        ({"regularizer": None}, "request_invalid"),
        ({"regularizer": {"kind": "l1"}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "delta": [1.0]}}, "spec_invalid"),
        ({"architecture": {"kind": "lenet5"}}, "spec_invalid"),
        ({"architecture": {"kind": "mlp", "hidden": [100_000, 100_000]}}, "model_too_large"),
        ({"input": {"kind": "vector", "dim": 3}}, "request_invalid"),
    ],
)
def test_a_bad_change_is_refused_and_takes_no_position(stack: Stack, api: httpx.Client, body: Any, code: str) -> None:
    name = stack.model()
    refused(api.post(f"/v1/models/{name}/changes", json=body), 422, code)
    assert api.get(f"/v1/models/{name}").json()["head"] == 0


def test_a_regularizer_of_the_old_size_is_refused_with_a_new_architecture(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(regularizer={"kind": "l2", "delta": [1.0, 1.0, 1.0]})
    body = {"architecture": {"kind": "linear", "degree": 2}}
    refused(api.post(f"/v1/models/{name}/changes", json=body), 422, "spec_invalid")
