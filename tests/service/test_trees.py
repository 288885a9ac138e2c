"""Tree ensembles over REST: their defaults, and what is refused."""

from __future__ import annotations

import base64
import re
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from tests.service.expect import add, refused, rows
from tests.stack import Stack

SMALL = {"kind": "trees", "trees": 1, "leaves": 3}
SPLITS: dict[str, Any] = {
    **{"feature": [[0, 1]], "threshold": [[0.5, 0.1]], "left": [[1, -1]], "right": [[-3, -2]]},
    **{"missing_left": [[True, False]], "zero_missing": [[False, False]]},
    **{"category_start": [[0, 0]], "category_words": [[0, 0]], "words": []},
}


def test_trees_choose_their_penalty_unless_it_is_given(stack: Stack, api: httpx.Client) -> None:
    model = api.get(f"/v1/models/{stack.model(architecture={'kind': 'trees'})}").json()
    assert (model["architecture"]["trees"], model["architecture"]["leaves"]) == (100, 31)
    assert model["regularizer"]["delta"] == "auto"
    given = stack.model(architecture=SMALL, regularizer={"kind": "l2", "delta": 7})
    assert api.get(f"/v1/models/{given}").json()["regularizer"]["delta"] == 7


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"architecture": {"kind": "trees"}, "input": {"kind": "image", "shape": [1, 2, 2]}}, "a table or a vector"),
        ({"regularizer": {"kind": "l2", "delta": "auto"}}, "only trees choose `delta`"),
        ({"architecture": {"kind": "trees", "leaves": 1}}, "must be at least 2"),
        ({"architecture": {"kind": "trees", "trees": 10_000, "leaves": 100_000}}, "more than 2000000 leaves"),
        ({"architecture": SMALL, "training": {"removal": {}}}, "requires a linear or kernel model"),
    ],
)
def test_a_spec_that_does_not_suit_trees_is_refused(
    stack: Stack, api: httpx.Client, spec: dict[str, Any], said: str
) -> None:
    body = {"name": "refused", "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}, **spec}
    answer = api.post("/v1/models", json=body)
    assert answer.status_code == 422
    assert said in answer.text


def test_another_architecture_needs_a_penalty_of_its_own(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(architecture=SMALL)
    refused(api.post(f"/v1/models/{name}/changes", json={"architecture": {"kind": "linear"}}), 422, "spec_invalid")
    change = {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1}}
    assert api.post(f"/v1/models/{name}/changes", json=change).status_code == 202


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("feature", [[0, 2]]),
        ("feature", [[0, 10**30]]),
        ("feature", [[0]]),
        ("feature", [[0, 1], [0]]),
        ("left", [[0, -1]]),
        ("left", [[1, -4]]),
        ("right", [[-3, 7]]),
        ("right", [[1, -2]]),
        ("right", [[-3, -1]]),
        ("right", [[-2, -2]]),
        ("category_words", [[1, 0]]),
        ("words", [-1]),
        ("words", [2**32]),
    ],
)
def test_splits_that_are_no_trees_are_refused(stack: Stack, api: httpx.Client, part: str, value: Any) -> None:
    name = stack.model(architecture=SMALL)
    add(api, name, rows(3))
    body = {"weights": [0.1] * 4, "splits": {**SPLITS, part: value}}
    assert api.post(f"/v1/models/{name}/imports", json=body).status_code == 422


def test_a_category_is_not_compared_with_a_threshold(stack: Stack, api: httpx.Client) -> None:
    columns = [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["free", "paid"]}]
    name = stack.model(architecture=SMALL, input={"kind": "table", "columns": columns})
    add(api, name, [{"id": f"e{i}", "x": {"age": i, "plan": "free"}, "y": i % 2} for i in range(3)])
    answer = api.post(f"/v1/models/{name}/imports", json={"weights": [0.1] * 4, "splits": SPLITS})
    refused(answer, 422, "splits_invalid")
    assert "compares a category" in answer.text
    # nodes that are not in use may refer to any column
    single = {"feature": [[0, 1]], "left": [[-1, -1]], "right": [[-2, -1]]}
    body = {"weights": [0.1] * 4, "splits": {**SPLITS, **single}}
    assert api.post(f"/v1/models/{name}/imports", json=body).status_code == 202


def test_weights_of_trees_need_splits_and_splits_need_trees(stack: Stack, api: httpx.Client) -> None:
    trees, linear = stack.model(architecture=SMALL), stack.model()
    for name in (trees, linear):
        add(api, name, rows(3))
    refused(api.post(f"/v1/models/{trees}/imports", json={"weights": [0.1] * 4}), 422, "splits_invalid")
    file = base64.b64encode(save({"w": np.full(4, 0.1)})).decode()
    refused(api.post(f"/v1/models/{trees}/imports", json={"tensors": file}), 422, "splits_invalid")
    refused(
        api.post(f"/v1/models/{linear}/imports", json={"weights": [0.1] * 3, "splits": SPLITS}), 422, "splits_invalid"
    )
    refused(api.post(f"/v1/models/{linear}/imports", json={}), 422, "request_invalid")
    assert api.post(f"/v1/models/{trees}/imports", json={"splits": SPLITS}).status_code == 202


def test_the_page_shows_the_penalty_that_training_chose(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(architecture=SMALL)
    x = np.random.default_rng(0).normal(size=(200, 2))
    add(api, name, [{"id": f"e{i}", "x": row.tolist(), "y": int(row[0] > 0)} for i, row in enumerate(x)])
    stack.train(name)
    with stack.client() as client:
        client.post("/sign-in", data={"key": stack.admin_key})
        page = client.get(f"/models/{name}").text
    assert re.search(r"delta auto.*training of the champion chose delta [0-9.]+", page)
