"""Segments through REST: a version that is worse for one value of a column is rejected, although the whole is fine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.deployment import Deployment

COUNTRIES = ["AT", "CH", "DE"]
COLUMNS = [
    {"name": "income", "type": "number"},
    {"name": "country", "type": "category", "values": COUNTRIES},
    {"name": "in_alps", "type": "number"},
]
SHARES = [0.1, 0.1, 0.8]


def batch(rng: np.random.Generator, first: int, count: int, only: str | None = None) -> list[dict[str, Any]]:
    """Examples of one rule for all countries; with `only`, examples of that country with flipped labels."""
    rows = []
    for i in range(first, first + count):
        country = only or str(rng.choice(COUNTRIES, p=SHARES))
        income = float(rng.normal())
        y = int(income + 0.5 * rng.normal() > 0)
        x = {"income": income, "country": country, "in_alps": income if country == "AT" else 0.0}
        split = "holdout" if i % 3 == 0 else "train"
        rows.append({"id": f"e{i}", "x": x, "y": 1 - y if only else y, "split": split})
    return rows


def poisoned_segment(deployment: Deployment, **policy: Any) -> tuple[str, dict[str, Any]]:
    """A model that learnt flipped labels of a small country in its second version, and that version."""
    rng = np.random.default_rng(0)
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy=policy)
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch(rng, 0, 3000)})
    assert deployment.adapted(name)["version"] == 1
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch(rng, 3000, 600, only="AT")})
    version: dict[str, Any] = deployment.version(name, deployment.adapted(name)["version"])
    return name, version


@pytest.mark.both_databases
def test_a_version_that_is_worse_for_one_country_is_rejected(deployment: Deployment) -> None:
    # with a limit that all examples together do not reach
    limits = {"gate": {"worse_by": 1.0}}
    _, without = poisoned_segment(deployment, **limits)
    assert (without["state"], without["gate"]["passed"]) == ("champion", True)
    assert "segments" not in without["gate"]
    _, version = poisoned_segment(deployment, **limits, segments=["country"])
    gate = version["gate"]
    worst, *others = gate["segments"]
    assert version["state"] == "rejected"
    assert (gate["passed"], worst["column"], worst["value"], worst["passed"]) == (False, "country", "AT", False)
    assert worst["relative"] > 1.0 > gate["relative"]
    assert {segment["value"]: segment["passed"] for segment in others} == {"CH": True, "DE": True}
    assert worst["rows"] + sum(segment["rows"] for segment in others) == gate["rows"]


def test_a_segment_needs_enough_rows(deployment: Deployment) -> None:
    rng = np.random.default_rng(1)
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy={"segments": ["country"]})
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch(rng, 0, 200)})
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch(rng, 200, 50)})
    deployment.adapted(name)
    assert [segment["value"] for segment in deployment.champion(name)["gate"]["segments"]] == ["DE"]


def test_quality_and_drift_name_the_worst_segment(deployment: Deployment) -> None:
    """Labels of one country are flipped and its incomes trebled, in two batches that make up one day."""
    rng = np.random.default_rng(2)
    policy = {"segments": ["country"], "gate": {"action": "warn"}}
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy=policy)
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch(rng, 0, 7500)})
    deployment.adapted(name)
    for first in (7500, 8100):
        rows = batch(rng, first, 500) + batch(rng, first + 500, 100, only="AT")
        for row in rows:
            row["time"] = f"2026-03-02T{first // 400}:00:00Z"
            row["x"]["income"] *= 3 if row["x"]["country"] == "AT" else 1
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
        deployment.adapted(name)
    (day,) = deployment.get(f"/v1/models/{name}/quality?window=day")["items"]
    worst, *others = day["segments"]
    assert (worst["column"], worst["value"]) == ("country", "AT")
    assert {segment["value"] for segment in others} == {"CH", "DE"}
    assert worst["rows"] + sum(segment["rows"] for segment in others) == day["rows"] == 1200
    total = sum(segment["rows"] * segment["champion"]["loss"] for segment in day["segments"]) / day["rows"]
    assert total == pytest.approx(day["champion"]["loss"])
    assert worst["champion"]["loss"] > 2 * max(segment["champion"]["loss"] for segment in others)

    drift = deployment.get(f"/v1/models/{name}/drift")
    first_segment, *rest = drift["segments"]
    assert (first_segment["value"], first_segment["drifted"], first_segment["worst"]) == ("AT", True, "income")
    assert [(s["value"], s["drifted"]) for s in rest] == [("DE", False)]  # CH has too few rows
    with deployment.client() as client:
        client.post("/sign-in", data={"key": deployment.admin_key})
        assert "country = AT" in client.get(f"/models/{name}/drift").text


def test_segments_are_categories_or_booleans(deployment: Deployment) -> None:
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS})
    with deployment.client() as client:
        for wrong in ("income", "none-such"):
            response = client.patch(f"/v1/models/{name}", json={"policy": {"segments": ["country", wrong]}})
            assert (response.status_code, response.json()["code"]) == (422, "policy_invalid")
            assert response.json()["errors"][0]["loc"][-2:] == ["segments", 1]
        changed = client.patch(f"/v1/models/{name}", json={"policy": {"segments": ["country"]}})
        assert changed.json()["policy"]["segments"] == ["country"]
