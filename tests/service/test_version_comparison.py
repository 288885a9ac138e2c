"""Comparison of two versions: specs, metrics, predictions that differ, coefficients."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors import numpy as safetensors

from core.models import catalog
from core.tables.ledger import HoldoutSample
from core.tables.versions import VersionState
from core.versions.queries import find_version
from tests.service.expect import add, refused, rows
from tests.stack import Stack

HELD_OUT = 40


def two_versions(stack: Stack, api: httpx.Client, **spec: Any) -> str:
    """A model with two versions: the second was made with another regularizer, of more examples."""
    name = stack.model(**spec)
    add(api, name, rows(20))
    add(api, name, [{**row, "split": "holdout"} for row in rows(HELD_OUT, "h")])
    stack.train(name)
    add(api, name, [{**row, "y": 1} for row in rows(20, "more-")])
    other = {"regularizer": {**api.get(f"/v1/models/{name}").json()["regularizer"], "delta": 0.01}}
    api.post(f"/v1/models/{name}/changes", json=other).raise_for_status()
    stack.train(name)
    return name


def compared(api: httpx.Client, name: str, a: int = 1, b: int = 2) -> dict[str, Any]:
    answer: dict[str, Any] = api.get(f"/v1/models/{name}/versions/{a}/compare/{b}").raise_for_status().json()
    return answer


def means(api: httpx.Client, name: str, version: int) -> Any:
    inputs = [row["x"] for row in rows(HELD_OUT)]
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": inputs, "version": version})
    return np.array([output["mean"] for output in answer.raise_for_status().json()["outputs"]])


def test_metrics_and_predictions_are_those_of_both_versions_on_the_holdout(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api)
    answer = compared(api, name)
    assert (answer["a"]["version"], answer["b"]["version"], answer["rows"]) == (1, 2, HELD_OUT)
    one, other = means(api, name, 1), means(api, name, 2)
    apart = (one > 0.5) != (other > 0.5)
    assert 0 < apart.mean() < 1
    assert answer["disagreement"] == pytest.approx(apart.mean())
    assert answer["disagreement_se"] == pytest.approx(apart.std() / HELD_OUT**0.5)
    assert answer["largest_change"] == pytest.approx(np.abs(one - other).max(), abs=1e-6)
    truth = np.array([row["y"] for row in rows(HELD_OUT)])
    right = [(guess > 0.5) == truth for guess in (one, other)]
    accuracy = answer["metrics"]["accuracy"]
    assert (accuracy["a"], accuracy["b"]) == pytest.approx((right[0].mean(), right[1].mean()))
    assert accuracy["difference_se"] == pytest.approx((right[0].astype(int) - right[1]).std() / HELD_OUT**0.5)
    assert answer["metrics"].keys() == {"loss", "accuracy", "auc", "average_precision", "f1", "calibration"}


def test_a_comparison_has_both_specs_and_their_differences(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api)
    answer = compared(api, name)
    assert answer["differences"] == [{"field": "regularizer.delta", "a": 1.0, "b": 0.01}]
    for side, number in (("a", 1), ("b", 2)):
        assert answer[side]["spec"] == api.get(f"/v1/models/{name}/versions/{number}").json()["spec"]
    back = compared(api, name, 2, 1)
    assert back["differences"] == [{"field": "regularizer.delta", "a": 0.01, "b": 1.0}]
    same = compared(api, name, 1, 1)
    assert (same["differences"], same["disagreement"], same["largest_change"]) == ([], 0, 0)


def test_coefficients_are_the_weights(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api)
    answer = compared(api, name)
    files = [api.get(f"/v1/models/{name}/versions/{n}/weights").content for n in (1, 2)]
    one, other = (safetensors.load(file)["w"] for file in files)
    expected = {feature: (one[i], other[i]) for i, feature in enumerate(("x[0]", "x[1]", "(intercept)"))}
    found = {c["feature"]: (c["a"], c["b"]) for c in answer["coefficients"]}
    assert found.keys() == expected.keys()
    for feature, pair in expected.items():
        assert found[feature] == pytest.approx(pair)
    assert answer["coefficients_total"] == 3
    assert answer["weight_distance"] == pytest.approx(np.linalg.norm(one - other))


def test_a_key_that_may_not_read_weights_sees_no_coefficients(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api)
    with stack.client(stack.key("read")) as reader, stack.client(stack.key("read", "weights")) as downloader:
        refused(reader.get(f"/v1/models/{name}/versions/1/weights"), 403, "scope_missing")
        answer = compared(reader, name)
        assert (answer["coefficients"], answer["coefficients_total"]) == (None, None)
        assert answer["rows"] == HELD_OUT
        assert compared(downloader, name)["coefficients_total"] == 3


def test_with_certified_removal_coefficients_require_admin(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(
        stack,
        api,
        regularizer={"kind": "l2", "delta": 1.0, "penalize_bias": True},
        training={"removal": {"sigma": 0.1}},
    )
    with stack.client(stack.key("read", "weights")) as downloader:
        assert compared(downloader, name)["coefficients"] is None
    assert compared(api, name)["coefficients"]


def test_a_comparison_reads_only_the_stored_sample(stack: Stack, api: httpx.Client) -> None:
    """So it takes as long however many examples there are: what came since the last job is not looked for."""
    name = two_versions(stack, api)
    assert compared(api, name)["rows"] == HELD_OUT
    add(api, name, [{**row, "split": "holdout"} for row in rows(10, "later-")])
    assert compared(api, name)["rows"] == HELD_OUT
    api.post(f"/v1/models/{name}/removals", json={"ids": ["h0", "h1"]}).raise_for_status()
    assert compared(api, name)["rows"] == HELD_OUT - 2
    with stack.database.read() as session:
        assert session.get_one(HoldoutSample, catalog.find(session, name, None).id).position == 81


def test_without_a_holdout_specs_and_coefficients_are_compared(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(20))
    stack.train(name)
    answer = compared(api, name, 1, 1)
    assert (answer["rows"], answer["metrics"], answer["disagreement"], answer["largest_change"]) == (0, {}, None, None)
    assert len(answer["coefficients"]) == 3


def test_numbers_are_compared_by_how_far_predictions_are_apart(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api, target={"kind": "number"})
    answer = compared(api, name)
    assert answer["metrics"].keys() == {"loss", "rmse", "r2"}
    assert answer["disagreement"] > 0
    assert answer["largest_change"] == pytest.approx(np.abs(means(api, name, 1) - means(api, name, 2)).max(), rel=1e-4)


def test_unknown_and_purged_versions_are_not_compared(stack: Stack, api: httpx.Client) -> None:
    name = two_versions(stack, api)
    for a, b in ((1, 3), (3, 1)):
        refused(api.get(f"/v1/models/{name}/versions/{a}/compare/{b}"), 404, "version_not_found")
    refused(api.get(f"/v1/models/{name}/versions/1/compare/x"), 422, "request_invalid")
    refused(api.get("/v1/models/none/versions/1/compare/2"), 404, "model_not_found")
    with stack.database.write() as session:
        find_version(session, catalog.find(session, name, None), 1).state = VersionState.PURGED
    refused(api.get(f"/v1/models/{name}/versions/1/compare/2"), 409, "version_purged")
    refused(api.get(f"/v1/models/{name}/versions/2/compare/1"), 409, "version_purged")
