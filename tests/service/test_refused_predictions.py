"""Refused predictions: the error and its location in the request."""

from __future__ import annotations

import httpx
import pytest

from tests.service.conftest import SMALL_BATCH
from tests.service.expect import JSON, add, location, refused, rows
from tests.service.test_predictions import TABLE, TARGETS, X, predict, small_model, trained
from tests.stack import Stack


def test_an_unknown_version_is_not_found(stack: Stack, api: httpx.Client) -> None:
    answer = api.post(f"/v1/models/{small_model(stack, api)}/predictions", json={"inputs": [[1, 1]], "version": 9})
    refused(answer, 404, "version_not_found")


BAD: dict[str, tuple[str, str, list[str | int]]] = {
    "short": ('{"inputs": [[1, 2], [1]]}', "example_shape_mismatch", ["inputs", 1]),
    "text": ('{"inputs": [[1, 2], [1, "2"]]}', "example_invalid", ["inputs", 1, 1]),
    "null": ('{"inputs": [[1, 2], null]}', "example_invalid", ["inputs", 1]),
    "too large": ('{"inputs": [[1, 2], [1, 1e39]]}', "number_too_large", ["inputs", 1]),
    "infinite": ('{"inputs": [[1, 2], [1, 1e999]]}', "example_invalid", ["inputs", 1, 1]),
    "none": ('{"inputs": []}', "batch_empty", ["inputs"]),
    "unknown field": ('{"inputs": [[1, 2]], "why": 1}', "example_invalid", []),
    "version 0": ('{"inputs": [[1, 2]], "version": 0}', "request_invalid", ["version"]),
    "huge version": ('{"inputs": [[1, 2]], "version": 1' + "0" * 30 + "}", "request_invalid", ["version"]),
    "text as version": ('{"inputs": [[1, 2]], "version": "1"}', "request_invalid", ["version"]),
}


@pytest.mark.parametrize(("body", "code", "loc"), BAD.values(), ids=BAD.keys())
def test_a_bad_input_is_refused_with_its_place(
    stack: Stack, api: httpx.Client, body: str, code: str, loc: list[str | int]
) -> None:
    path = f"/v1/models/{small_model(stack, api)}/predictions"
    problem = refused(api.post(path, content=body, headers=JSON), 422, code)
    assert not loc or location(problem) == loc


MALFORMED = {"": 400, "{": 400, "[" * 100_000: 422, '{"inputs": [[NaN, 1]]}': 400, '{"a": "\\ud800"}': 400}


@pytest.mark.parametrize(("body", "status"), MALFORMED.items())
def test_a_malformed_body_is_refused(stack: Stack, api: httpx.Client, body: str, status: int) -> None:
    path = f"/v1/models/{small_model(stack, api)}/predictions"
    refused(api.post(path, content=body, headers=JSON), status)


def test_an_unknown_category_is_refused_in_a_prediction_too(stack: Stack, api: httpx.Client) -> None:
    xs = [{"age": i, "job": "a"} for i in range(4)]
    strict = {**TABLE, "columns": [TABLE["columns"][0], {**TABLE["columns"][1], "other": False}]}
    name = trained(stack, api, xs, [0, 1, 0, 1], input=strict)
    answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [xs[0], {"age": 1, "job": "b"}]})
    assert location(refused(answer, 422, "category_unknown")) == ["inputs", 1, "job"]


def test_too_many_inputs_are_refused(small: Stack) -> None:
    with small.client() as api:
        name = small.model()
        add(api, name, rows(SMALL_BATCH))
        small.train(name)
        assert len(predict(api, name, [[1, 1]] * SMALL_BATCH)) == SMALL_BATCH
        answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [[1, 1]] * (SMALL_BATCH + 1)})
        refused(answer, 413, "batch_too_large")


def test_a_prediction_that_overflows_is_not_a_server_error(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, X.tolist(), TARGETS["count"][1], target={"kind": "count"})
    for x, status in (([3e38, -3e38], 422), ([-3e38, 3e38], 200)):
        answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": [x]})
        assert answer.status_code == status
        assert "NaN" not in answer.text
        assert "nfinity" not in answer.text
