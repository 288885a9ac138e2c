"""Unseen values of category columns are mapped to `other` in every format, and counted."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.service.bodies import BODIES
from tests.service.expect import listed, location, refused
from tests.service.test_formats import send
from tests.service.test_predictions import predict, trained
from tests.stack import Stack


def table(*values: int | str, **options: Any) -> dict[str, Any]:
    return {"kind": "table", "columns": [{"name": "c", "type": "category", "values": list(values), **options}]}


def examples(*values: Any) -> list[dict[str, Any]]:
    return [{"id": f"e{i}", "x": {"c": value}, "y": i % 2} for i, value in enumerate(values)]


def count_unseen(api: httpx.Client, name: str) -> float:
    found = re.findall(rf'^amend_unseen_categories_total{{model="{name}"}} (\S+)$', api.get("/metrics").text, re.M)
    return float(found[0]) if found else 0.0


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    ("values", "given", "shown"),
    [
        (["a", "b"], ["a", "zebra", None, "b", "A"], ["a", "other", None, "b", "other"]),
        (["a", "other"], ["a", "zebra", None, "other", "b"], ["a", "other", None, "other", "other"]),
        ([1, -2], [1, 7, None, -2, 0], [1, "other", None, -2, "other"]),
        ([1, -2], ["1", "7", "", "-2.0", "1.5"], [1, "other", None, -2, "other"]),
        (["false", "a"], [False, True, None, False, True], ["false", "other", None, "false", "other"]),
    ],
    ids=["texts", "a value of that name", "whole numbers", "numbers as texts", "booleans"],
)
def test_an_unseen_value_is_taken_as_other_in_every_format(
    stack: Stack, api: httpx.Client, kind: str, values: Any, given: Any, shown: Any
) -> None:
    name = stack.model(input=table(*values))
    answer = send(api, name, BODIES[kind](examples(*given)), kind)
    assert answer.status_code == 201, answer.text
    stored = listed(api, name)
    assert [row["x"]["c"] for row in stored] == shown
    # what is shown can be sent again: it is the same content
    again = [{"id": row["id"], "x": row["x"], "y": row["y"]} for row in stored]
    assert send(api, name, BODIES["application/json"](again), "application/json").json()["duplicates"] == 5
    assert count_unseen(api, name) == 2 * shown.count("other")


@pytest.mark.parametrize("kind", BODIES)
def test_a_column_without_other_refuses_unseen_values(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model(input=table("a", "b", other=False))
    answer = send(api, name, BODIES[kind](examples("a", "zebra")), kind)
    where = location(refused(answer, 422, "category_unknown"))
    assert (where[:2], where[-1]) == (["examples", 1], "c")
    assert "zebra" not in answer.text
    assert not listed(api, name)


def test_a_prediction_takes_an_unseen_value_as_other_and_counts_it(stack: Stack, api: httpx.Client) -> None:
    xs = [{"c": value} for value in ("a", "b", "x", "y", "a", "b", "z", None)]
    name = trained(stack, api, xs, [0, 0, 1, 1, 0, 0, 1, 0], input=table("a", "b"))
    before = count_unseen(api, name)
    known, unseen, other, missing = predict(api, name, [{"c": c} for c in ("a", "never seen", "other", None)])
    assert unseen == other
    assert unseen["mean"] > 0.5 > known["mean"]
    assert missing != unseen
    assert (before, count_unseen(api, name)) == (3, 5)


def test_an_empty_bucket_has_no_weight(stack: Stack, api: httpx.Client) -> None:
    xs = [{"c": value} for value in ("a", "b", "a", "b", "a", "b")]
    name = trained(stack, api, xs, [0, 1, 0, 1, 1, 1], input=table("a", "b"))
    [other, missing] = predict(api, name, [{"c": "new"}, {"c": None}])
    assert other == missing
