"""Changes of the regularizer and the architecture."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import add, paged, refused, rows
from tests.stack import Stack

RIDGE = {"kind": "l2", "delta": 10.0, "penalize_bias": False}


def test_a_change_shows_in_the_model_and_takes_one_position(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    answer = api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE})
    assert answer.status_code == 202
    assert answer.json() == {"position": 1, "job": None}
    model = api.get(f"/v1/models/{name}").json()
    assert (model["regularizer"], model["head"]) == (RIDGE, 1)


def test_columns_have_a_delta_of_their_own(stack: Stack, api: httpx.Client) -> None:
    columns = [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["free", "paid"]}]
    name = stack.model(input={"kind": "table", "columns": columns}, regularizer={**RIDGE, "columns": {"age": 30.0}})
    changed = {**RIDGE, "columns": {"age": 20.0, "plan": 0.1}}
    assert api.post(f"/v1/models/{name}/changes", json={"regularizer": changed}).status_code == 202
    assert api.get(f"/v1/models/{name}").json()["regularizer"] == changed
    wrong = {**RIDGE, "columns": {"plan": 0.1, "agee": 1.0}}
    answer = api.post(f"/v1/models/{name}/changes", json={"regularizer": wrong})
    refused(answer, 422, "column_unknown")
    assert answer.json()["errors"][0]["loc"] == ["regularizer", "columns", "agee"]
    mlp = {"architecture": {"kind": "mlp", "hidden": [3]}}
    refused(api.post(f"/v1/models/{name}/changes", json=mlp), 422, "column_delta_unsupported")
    api.post(f"/v1/models/{name}/changes", json={**mlp, "regularizer": RIDGE}).raise_for_status()


def test_weights_are_drawn_toward_given_ones(stack: Stack, api: httpx.Client) -> None:
    toward = {**RIDGE, "toward": [0.5, -0.25, 1.0]}
    name = stack.model(regularizer=toward)
    assert api.get(f"/v1/models/{name}").json()["regularizer"] == toward
    other = {**RIDGE, "toward": [0.0, 0.25, 1e-3], "columns": {"1": 2.0}}
    api.post(f"/v1/models/{name}/changes", json={"regularizer": other}).raise_for_status()
    assert api.get(f"/v1/models/{name}/changes").json()["items"][0]["value"] == other
    square = {"architecture": {"kind": "linear", "degree": 2}}
    answer = api.post(f"/v1/models/{name}/changes", json=square)
    refused(answer, 422, "toward_mismatch")
    assert answer.json()["errors"][0]["loc"] == ["regularizer", "toward"]
    api.post(f"/v1/models/{name}/changes", json={"revert": 1}).raise_for_status()
    assert api.get(f"/v1/models/{name}").json()["regularizer"] == toward


def test_weights_that_depend_on_units_are_refused(stack: Stack, api: httpx.Client) -> None:
    """Those of a table's numbers, but for a linear model of degree 1."""
    table = {"kind": "table", "columns": [{"name": "age", "type": "number"}]}
    name = stack.model(input=table, regularizer={**RIDGE, "toward": [0.1, 0.2, 0.3]})
    body = {"architecture": {"kind": "linear", "degree": 2}, "regularizer": {**RIDGE, "toward": [0.1] * 6}}
    refused(api.post(f"/v1/models/{name}/changes", json=body), 422, "toward_unsupported")


def test_both_changes_at_once_take_two_positions(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    body = {"regularizer": RIDGE, "architecture": {"kind": "linear", "degree": 2}}
    assert api.post(f"/v1/models/{name}/changes", json=body).json()["position"] == 2
    assert api.get(f"/v1/models/{name}").json()["architecture"] == body["architecture"]


def test_a_change_of_a_trained_model_enqueues_an_adaptation(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(10))
    stack.train(name)
    answer = api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE}).json()
    job = api.get(f"/v1/jobs/{answer['job']}").json()
    assert (job["kind"], job["state"], job["from_position"], job["to_position"]) == ("adapt", "queued", 10, 11)


def test_a_change_is_reverted_by_a_new_one(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    before = api.get(f"/v1/models/{name}").json()
    square = {"kind": "linear", "degree": 2}
    api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE, "architecture": square}).raise_for_status()
    add(api, name, rows(3))
    answer = api.post(f"/v1/models/{name}/changes", json={"revert": 1})
    assert (answer.status_code, answer.json()) == (202, {"position": 6, "job": None})
    model = api.get(f"/v1/models/{name}").json()
    # what else was changed since stays
    assert (model["regularizer"], model["architecture"]) == (before["regularizer"], square)
    assert api.post(f"/v1/models/{name}/changes", json={"revert": 2}).json()["position"] == 7
    assert api.get(f"/v1/models/{name}").json()["architecture"] == before["architecture"]
    changes = list(paged(api, f"/v1/models/{name}/changes", limit=3))
    assert [(c["position"], c["kind"]) for c in changes] == [
        (7, "architecture"),
        (6, "regularizer"),
        (2, "architecture"),
        (1, "regularizer"),
    ]
    assert (changes[1]["value"], changes[3]["value"]) == (before["regularizer"], RIDGE)
    # and a revert can be reverted
    api.post(f"/v1/models/{name}/changes", json={"revert": 6}).raise_for_status()
    assert api.get(f"/v1/models/{name}").json()["regularizer"] == RIDGE


def test_a_revert_on_a_trained_model_enqueues_an_adaptation(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(10))
    stack.train(name)
    api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE}).raise_for_status()
    stack.train(name)
    answer = api.post(f"/v1/models/{name}/changes", json={"revert": 11}).json()
    job = api.get(f"/v1/jobs/{answer['job']}").json()
    assert (job["kind"], job["state"], job["to_position"]) == ("adapt", "queued", 12)


def test_only_changes_of_the_model_can_be_reverted(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    path = f"/v1/models/{name}/changes"
    refused(api.post(path, json={"revert": 1}), 404, "change_not_found")
    add(api, name, rows(2))
    refused(api.post(path, json={"revert": 1}), 422, "change_irreversible")
    refused(api.post(path, json={"revert": 3}), 404, "change_not_found")
    refused(api.post(path, json={"revert": 2**63 - 1}), 404, "change_not_found")
    api.post(path, json={"regularizer": RIDGE}).raise_for_status()
    api.post(path, json={"revert": 3}).raise_for_status()
    refused(api.post(path, json={"revert": 3}), 409, "change_reverted")
    assert api.get(f"/v1/models/{name}").json()["head"] == 4


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "request_invalid"),
        ({"revert": 0}, "request_invalid"),
        ({"revert": 2**63}, "request_invalid"),
        ({"revert": "last"}, "request_invalid"),
        ({"revert": 1, "regularizer": {"kind": "l2"}}, "request_invalid"),
        ({"regularizer": None}, "request_invalid"),
        ({"regularizer": {"kind": "l1"}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "delta": [1.0]}}, "spec_invalid"),
        ({"regularizer": {"kind": "l2", "columns": {"0": -1.0}}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "columns": {}}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "delta": [1.0], "columns": {"0": 1.0}}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "columns": {"0": 1.0, "9": 1.0}}}, "column_unknown"),
        ({"regularizer": {"kind": "l2", "toward": []}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "toward": [0.1, "much", 0.1]}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "toward": {"model": "other", "version": 3}}}, "request_invalid"),
        ({"regularizer": {"kind": "l2", "toward": [1.0]}}, "toward_mismatch"),
        (
            {"regularizer": {"kind": "l2", "columns": {"0": 1.0}}, "architecture": {"kind": "mlp"}},
            "column_delta_unsupported",
        ),
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
