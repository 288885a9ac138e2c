"""The loss of a model: set on creation, changed, and refused where it does not fit the target."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import add, refused, rows
from tests.stack import Stack

NUMBER = {"kind": "number"}
HINGE = {"kind": "squared_hinge"}


def test_a_loss_is_the_targets_own_unless_another_is_given(stack: Stack, api: httpx.Client) -> None:
    assert api.get(f"/v1/models/{stack.model()}").json()["loss"] == {"kind": "log"}
    assert api.get(f"/v1/models/{stack.model(loss='squared_hinge')}").json()["loss"] == HINGE
    huber = {"kind": "huber", "threshold": 1.35}
    assert api.get(f"/v1/models/{stack.model(target=NUMBER, loss='huber')}").json()["loss"] == huber


def test_a_loss_is_changed_and_the_change_is_undone(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=NUMBER)
    answer = api.post(f"/v1/models/{name}/changes", json={"loss": {"kind": "huber", "threshold": 3}})
    assert (answer.status_code, answer.json()["position"]) == (202, 1)
    assert api.get(f"/v1/models/{name}").json()["loss"] == {"kind": "huber", "threshold": 3.0}
    listed = api.get(f"/v1/models/{name}/changes").json()["items"][0]
    assert (listed["kind"], listed["value"]) == ("loss", {"kind": "huber", "threshold": 3.0})
    api.post(f"/v1/models/{name}/changes", json={"revert": 1}).raise_for_status()
    assert api.get(f"/v1/models/{name}").json()["loss"] == {"kind": "squared"}
    refused(api.post(f"/v1/models/{name}/changes", json={"revert": 1}), 409, "change_reverted")


@pytest.mark.parametrize(
    ("spec", "change", "code", "said"),
    [
        ({}, {"loss": "hinge"}, "loss_unknown", "must be one of"),
        ({}, {"loss": 5}, "request_invalid", "must be a name or an object"),
        (
            {},
            {"loss": "huber"},
            "loss_unsuitable",
            "does not suit a 'binary' target; use log or squared or squared_hinge",
        ),
        ({"target": NUMBER}, {"loss": HINGE}, "loss_unsuitable", "'number' target; use huber or squared"),
        ({"target": NUMBER}, {"loss": {"kind": "huber", "threshold": 0}}, "request_invalid", "must be greater than 0"),
        ({}, {"loss": HINGE, "architecture": {"kind": "mlp"}}, "loss_unsuitable", "is for linear and kernel models"),
        (
            {"loss": HINGE},
            {"architecture": {"kind": "mlp"}},
            "loss_unsuitable",
            "set `loss` to 'log' in the same request",
        ),
        ({"loss": HINGE}, {"target": {"kind": "classes", "values": [0, 1, 2]}}, "loss_unsuitable", "'classes'"),
    ],
)
def test_a_loss_that_does_not_suit_is_refused_and_takes_no_position(
    stack: Stack, api: httpx.Client, spec: dict[str, Any], change: dict[str, Any], code: str, said: str
) -> None:
    name = stack.model(**spec)
    answer = api.post(f"/v1/models/{name}/changes", json=change)
    refused(answer, 422, code)
    assert answer.json()["errors"][0]["loc"][0] == "loss"
    assert said in answer.json()["detail"]
    assert api.get(f"/v1/models/{name}").json()["head"] == 0


def test_a_loss_changes_with_the_part_that_it_would_not_suit(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(loss="squared_hinge")
    body = {"target": {"kind": "classes", "values": [0, 1, 2]}, "loss": "log"}
    assert api.post(f"/v1/models/{name}/changes", json=body).status_code == 202
    assert api.get(f"/v1/models/{name}").json()["loss"] == {"kind": "log"}


def test_losses_of_different_kinds_are_not_compared(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target=NUMBER)
    add(api, name, [*rows(20), *({**row, "split": "holdout"} for row in rows(30, "h"))])
    stack.train(name)
    for loss in ("huber", "squared"):
        api.post(f"/v1/models/{name}/changes", json={"loss": loss}).raise_for_status()
        stack.train(name)
    huber, back = (api.get(f"/v1/models/{name}/versions/1/compare/{other}").json() for other in (2, 3))
    assert huber["metrics"].keys() == {"rmse", "r2"}
    kinds = {"field": "loss.kind", "a": "squared", "b": "huber"}
    assert huber["differences"] == [kinds, {"field": "loss.threshold", "a": None, "b": 1.35}]
    assert ("loss" in back["metrics"], back["differences"]) == (True, [])
    listed = api.get(f"/v1/models/{name}/versions").json()["items"]
    assert [version["spec"]["loss"]["kind"] for version in listed] == ["squared", "huber", "squared"]
