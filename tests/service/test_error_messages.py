"""Error messages are our own, whichever library found the error."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import location, refused
from tests.stack import Stack

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)

VECTOR, BINARY = {"kind": "vector", "dim": 2}, {"kind": "binary"}
TEXTS = {"kind": "table", "columns": [{"name": "a", "type": "text"}]}


@pytest.mark.parametrize(
    ("body", "where", "says"),
    [
        ({"target": BINARY}, ["input"], "is missing"),
        ({"inputs": VECTOR, "input": VECTOR, "target": BINARY}, ["inputs"], "unknown field; did you mean 'input'?"),
        ({"input": VECTOR, "target": BINARY, "policy": {"holdot": 0}}, ["policy", "holdot"], "unknown field; did you"),
        (
            {"input": VECTOR, "target": BINARY, "architecture": {"kind": "mlp", "widht": 3, "hidden": [3]}},
            ["architecture", "widht"],
            "unknown field",
        ),
        ({"input": {"kind": "cube"}, "target": BINARY}, ["input"], "`kind` must be one of 'vector', 'image', 'table'"),
        ({"input": {"dim": 2}, "target": BINARY}, ["input"], "`kind` is missing"),
        ({"input": TEXTS, "target": BINARY}, ["input", "columns", 0], "`type` must be one of 'number', 'boolean', "),
        ({"input": {"kind": "vector", "dim": "many"}, "target": BINARY}, ["input", "dim"], "must be an integer"),
        ({"input": {"kind": "vector", "dim": 0}, "target": BINARY}, ["input", "dim"], "must be at least 1"),
        (
            {"input": VECTOR, "target": {"kind": "classes", "values": ["a"]}},
            ["target", "values"],
            "must have at least 2 item(s)",
        ),
        ({"input": VECTOR, "target": "binary"}, ["target"], "must be an object"),
        (
            {"name": "No", "input": VECTOR, "target": BINARY},
            ["name"],
            "must consist of 1 to 63 of the characters a-z, 0-9, - and _",
        ),
        (
            {"input": VECTOR, "target": BINARY, "regularizer": {"kind": "l1"}},
            ["regularizer", "kind"],
            "must be l2",
        ),
    ],
    ids=str,
)
def test_a_bad_model_is_refused_in_plain_words(
    stack: Stack, api: httpx.Client, body: dict[str, Any], where: list[Any], says: str
) -> None:
    code = "policy_invalid" if where[0] == "policy" else "request_invalid"
    problem = refused(api.post("/v1/models", json={"name": "any", **body}), 422, code)
    assert location(problem) == where
    assert problem["errors"][0]["msg"].startswith(says)
    assert all(word not in problem["detail"] for word in ("Input", "Field", "Value error", "valid ", "tag"))


def test_a_number_out_of_range_is_not_said_to_need_another_type(api: httpx.Client) -> None:
    body = {"name": "any", "input": VECTOR, "target": BINARY, "regularizer": {"kind": "l2", "delta": -1}}
    problem = refused(api.post("/v1/models", json=body), 422, "request_invalid")
    assert problem["errors"] == [{"loc": ["regularizer", "delta"], "msg": "must be at least 0"}]


@pytest.mark.parametrize(
    ("example", "where", "says"),
    [
        ({"x": [1, "a"], "y": 1}, ["x", 1], "must be a number, or true or false"),
        (
            {"x": [1, None], "y": 1},
            ["x", 1],
            "must be a number, or true or false, and not missing (null or NaN)",
        ),
        ({"x": {"a": 1}, "y": 1}, ["x"], "must be a list"),
        ({"x": [1, 2]}, [], "`y` is missing"),
        (
            {"x": [1, 2], "y": [1]},
            ["y"],
            "must be 0 or 1, true or false, yes or no, or a probability from 0 to 1",
        ),
        ({"x": [1, 2], "y": 1, "wieght": 2}, [], "unknown field `wieght`"),
        ({"x": [1, 2], "y": 1, "id": 7}, ["id"], "must be text"),
    ],
    ids=str,
)
def test_a_bad_example_is_refused_in_plain_words(
    stack: Stack, api: httpx.Client, example: dict[str, Any], where: list[Any], says: str
) -> None:
    body = {"examples": [{"id": "a", "x": [1, 2], "y": 1}, {"id": "b", **example}]}
    problem = refused(api.post(f"/v1/models/{stack.model()}/examples", json=body), 422)
    assert (location(problem), problem["errors"][0]["msg"]) == (["examples", 1, *where], says)


@pytest.mark.parametrize(
    ("policy", "where", "says"),
    [
        ({"adapt": {"every": "soon"}}, ["adapt", "every"], "must be a positive integer and a unit"),
        ({"expire": 365}, ["expire"], "must be text"),
        ({"promote": "never"}, ["promote"], "must be 'automatic' or 'manual'"),
        ({"holdout": 1}, ["holdout"], "must be less than 1"),
        ({"retian": {}}, ["retian"], "unknown field; did you mean 'retrain'?"),
        ({"adapt": {"evry": "1h"}}, ["adapt", "evry"], "unknown field; did you mean 'every'?"),
    ],
    ids=str,
)
def test_an_invalid_policy_gives_the_same_error_on_create_and_patch(
    stack: Stack, api: httpx.Client, policy: dict[str, Any], where: list[Any], says: str
) -> None:
    created = api.post("/v1/models", json={"name": "any", "input": VECTOR, "target": BINARY, "policy": policy})
    changed = api.patch(f"/v1/models/{stack.model()}", json={"policy": policy})
    for answer in (created, changed):
        problem = refused(answer, 422, "policy_invalid")
        assert location(problem) == ["policy", *where]
        assert problem["errors"][0]["msg"].startswith(says)
