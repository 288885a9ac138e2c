"""The work of one request is bounded, whatever the size of its body."""

from __future__ import annotations

import httpx

from tests.service.expect import refused
from tests.stack import Stack


def test_more_probabilities_than_an_answer_holds_are_refused(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(
        input={"kind": "vector", "dim": 1},
        target={"kind": "classes", "values": list(range(100))},
        policy={"holdout": 0},
    )
    rows = [{"id": f"e{i}", "x": [i / 100], "y": i} for i in range(100)]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).status_code == 201
    stack.train(name)
    asked = f"/v1/models/{name}/predictions"
    assert len(api.post(asked, json={"inputs": [[0.5]] * 3000}).json()["outputs"]) == 3000
    refused(api.post(asked, json={"inputs": [[0.5]] * 20_001}), 413, "batch_too_large")


def test_a_page_of_large_examples_is_short_and_has_a_next_page(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input={"kind": "vector", "dim": 60_000}, policy={"holdout": 0})
    rows = [{"id": f"e{i}", "x": [0.5] * 60_000, "y": 1} for i in range(5)]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).status_code == 201
    first = api.get(f"/v1/models/{name}/examples").json()
    assert [item["id"] for item in first["items"]] == ["e0", "e1", "e2"]
    rest = api.get(f"/v1/models/{name}/examples", params={"after": first["next"]}).json()
    assert [item["id"] for item in rest["items"]] == ["e3", "e4"]
    assert rest["next"] is None
