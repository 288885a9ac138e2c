"""Soft labels of binary targets over REST: every format, what is returned, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.bodies import BODIES
from tests.service.expect import add, listed, location, refused
from tests.stack import Stack

ROWS: list[dict[str, Any]] = [
    {"id": f"e{i}", "x": [i, 1.0], "y": y, "split": "train"} for i, y in enumerate([0.0, 0.25, 1.0, 1e-12])
]


@pytest.mark.parametrize("kind", BODIES)
def test_every_format_has_soft_labels(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model()
    body, headers = BODIES[kind](ROWS), {"Content-Type": kind}
    assert api.post(f"/v1/models/{name}/examples", content=body, headers=headers).status_code == 201
    assert [row["y"] for row in listed(api, name)] == [0, 0.25, 1, 1e-12]
    again = api.post(f"/v1/models/{name}/examples", content=body, headers=headers).json()
    assert again["duplicates"] == 4
    bad = [*ROWS[:2], {**ROWS[2], "id": "new", "y": 1.25}]
    answer = api.post(f"/v1/models/{name}/examples", content=BODIES[kind](bad), headers=headers)
    assert location(refused(answer, 422, "label_invalid")) == ["examples", 2, "y"]


def test_labels_that_arrive_later_may_be_soft(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, [{**row, "y": None} for row in ROWS])
    labels = [{"id": row["id"], "y": row["y"]} for row in ROWS]
    assert api.post(f"/v1/models/{name}/labels", json={"labels": labels}).json()["accepted"] == 4
    assert sorted(row["y"] for row in listed(api, name)) == [0, 1e-12, 0.25, 1]


def test_a_squared_hinge_and_classes_have_no_soft_labels(stack: Stack, api: httpx.Client) -> None:
    machine = stack.model(loss="squared_hinge")
    answer = api.post(f"/v1/models/{machine}/examples", json={"examples": ROWS})
    assert location(refused(answer, 422, "label_invalid")) == ["examples", 1, "y"]
    name = stack.model()
    add(api, name, ROWS)
    changes = f"/v1/models/{name}/changes"
    assert location(refused(api.post(changes, json={"loss": "squared_hinge"}), 422, "soft_labels")) == ["loss"]
    classes = {"kind": "classes", "values": [0, 1, 2]}
    assert location(refused(api.post(changes, json={"target": classes}), 422, "soft_labels")) == ["target"]
    assert api.post(changes, json={"loss": "squared"}).status_code == 202
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e1", "e3"]}).raise_for_status()
    assert api.post(changes, json={"target": classes, "loss": "log"}).status_code == 202
