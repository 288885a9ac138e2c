"""Drift through REST: which columns are reported, when, and that removed examples leave no trace in the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from amend import Client
from core.models import catalog
from core.tables.quality import DriftReport
from tests.browser import browser
from tests.worker.deployment import Deployment
from tests.worker.erasure_helpers import erase
from tests.worker.test_pages import PICTURES, sign_in
from tests.worker.test_webhooks import told

TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "income", "type": "number"},
        {"name": "member", "type": "boolean"},
        {"name": "joined", "type": "date"},
        {"name": "plan", "type": "category", "values": ["free", "basic", "paid"], "other": True},
    ],
}
NAMES = [column["name"] for column in TABLE["columns"]]  # type: ignore[index]


class Customers:
    """Customers with numbered ids; a batch can differ from the others in one column."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed, self.count = seed, 0

    def subject(self, number: int) -> str:
        return f"drift-{self.seed}-{number}"

    def rows(self, n: int, **change: Any) -> list[dict[str, Any]]:
        rows = []
        for _ in range(n):
            x = {
                "age": self.rng.normal(40, 10),
                "income": self.rng.lognormal(8, 1),
                "member": bool(self.rng.random() < 0.3),
                "joined": f"20{self.rng.integers(10, 24)}-0{self.rng.integers(1, 10)}-15",
                "plan": str(self.rng.choice(["free", "basic", "paid"], p=[0.5, 0.3, 0.2])),
            }
            label = int(self.rng.random() < 1 / (1 + np.exp(-(x["age"] - 40) / 5)))
            x.update({name: value(x[name], self.rng) for name, value in change.items()})
            rows.append({"id": f"c{self.count}", "subject": self.subject(self.count % 997), "x": x, "y": label})
            self.count += 1
        return rows


def add(deployment: Deployment, name: str, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), 1000):
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows[start : start + 1000]})


def trained(deployment: Deployment, rows: list[dict[str, Any]], **policy: Any) -> str:
    name = deployment.new_model(input=TABLE, policy={"gate": {"action": "warn"}, **policy})
    add(deployment, name, rows)
    assert deployment.adapted(name)["version"] == 1
    return name


def report(deployment: Deployment, name: str) -> dict[str, Any]:
    found: dict[str, Any] = deployment.get(f"/v1/models/{name}/drift")
    assert [column["psi"] for column in found["columns"]] == sorted((c["psi"] for c in found["columns"]), reverse=True)
    return found


def drifted(found: dict[str, Any]) -> set[str]:
    return {column["name"] for column in found["columns"] if column["drifted"]}


def by_name(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(column for column in found["columns"] if column["name"] == name)


@pytest.mark.both_databases
def test_exactly_the_shifted_column_drifts(deployment: Deployment) -> None:
    customers = Customers()
    name = trained(deployment, customers.rows(3000))
    found = report(deployment, name)
    assert (found["window"]["rows"], drifted(found), found["drifted"]) == (0, set(), False)
    assert {column["name"] for column in found["columns"]} == set(NAMES)
    assert all(column["too_few_rows"] for column in found["columns"])

    add(deployment, name, customers.rows(600))
    deployment.adapted(name)
    found = report(deployment, name)
    assert (found["window"]["rows"], found["window"]["first_position"], found["position"]) == (600, 3001, 3600)
    assert (drifted(found), found["drifted"], found["predictions"]["drifted"]) == (set(), False, False)
    assert not any(column["too_few_rows"] for column in found["columns"])

    add(deployment, name, customers.rows(1200, income=lambda value, rng: 3 * value))
    deployment.adapted(name)
    found = report(deployment, name)
    assert drifted(found) == {"income"}
    assert found["columns"][0]["name"] == "income"
    assert found["columns"][0]["p_value"] < 1e-6
    assert found["reference"]["last_position"] == 3000


def test_unremarkable_batches_do_not_drift(deployment: Deployment) -> None:
    customers = Customers(1)
    name = trained(deployment, customers.rows(2000))
    for _ in range(20):
        add(deployment, name, customers.rows(250))
        assert not report(deployment, name)["drifted"]


def test_unseen_and_missing_values_drift(deployment: Deployment) -> None:
    customers = Customers(2)
    name = trained(deployment, customers.rows(2000))

    def forget(value: object, rng: np.random.Generator) -> object:
        return None if rng.random() < 0.4 else value

    def rename(value: object, rng: np.random.Generator) -> object:
        return "team" if rng.random() < 0.5 else value

    add(deployment, name, customers.rows(1000, age=forget, plan=rename))
    found = report(deployment, name)
    assert drifted(found) == {"age", "plan"}
    assert by_name(found, "age")["missing"] == pytest.approx(0.4, abs=0.05)
    assert by_name(found, "plan")["unseen"] == pytest.approx(0.5, abs=0.05)
    bins = {entry["label"]: entry for entry in by_name(found, "plan")["bins"]}
    assert bins["unseen"]["reference"] == 0
    assert bins["unseen"]["window"] == by_name(found, "plan")["unseen"] * 1000
    assert (
        bins["free"]["reference"] + bins["basic"]["reference"] + bins["paid"]["reference"]
        == (found["reference"]["rows"])
    )


def test_predictions_drift_with_the_column_that_decides_them(deployment: Deployment) -> None:
    customers = Customers(3)
    name = trained(deployment, customers.rows(2000))
    add(deployment, name, customers.rows(800, age=lambda value, rng: value + 12))
    found = report(deployment, name)
    assert drifted(found) == {"age"}
    assert found["predictions"]["drifted"]
    assert found["predictions"]["type"] == "probability"


@pytest.mark.both_databases
@pytest.mark.parametrize("way", ["removal", "erasure"])
def test_removed_examples_leave_no_trace_in_the_report(deployment: Deployment, way: str) -> None:
    customers = Customers(35)
    rows, people = customers.rows(1500), [customers.subject(number) for number in (7, 8, 9)]
    for row in rows:
        # Without a split, the holdout is drawn with the deployment's random secret. With almost half of these draws,
        # the units of the training examples change, the erasure retrains, and the reference of drift moves.
        row["split"] = "train" if int(row["id"][1:]) % 10 else "holdout"
    gone = [row for row in rows if row["subject"] in people]
    assert len(gone) == 6  # some before and some after the training
    without = [row for row in rows if row not in gone]
    reports = []
    for kept in (rows, without):
        name = trained(deployment, [row for row in kept if int(row["id"][1:]) < 1000])
        add(deployment, name, [row for row in kept if int(row["id"][1:]) >= 1000])
        deployment.adapted(name)
        before = report(deployment, name)
        if kept is rows:
            if way == "removal":
                job = deployment.post(f"/v1/models/{name}/removals", {"subjects": people})["job"]
                assert deployment.ended(job)["state"] == "succeeded"
            else:
                for person in people:
                    erase(deployment, person)
            assert report(deployment, name)["columns"] != before["columns"]
            assert deployment.champion(name)["kind"] == "adapted"
        reports.append(report(deployment, name))
    one, other = reports
    assert one["columns"] == other["columns"]
    assert one["reference"]["rows"] == other["reference"]["rows"]
    assert one["window"]["rows"] == other["window"]["rows"] == 497
    assert [b["label"] for b in one["predictions"]["bins"]] != []


@pytest.mark.both_databases
def test_drift_is_announced_once_and_can_start_a_retrain(deployment: Deployment) -> None:
    customers = Customers(6)
    with told(deployment, "drift.detected") as (receiver, _):
        name = trained(deployment, customers.rows(1200), retrain={"every": None, "on_drift": False})

        def announced() -> list[dict[str, Any]]:
            return [event for event in receiver.events("drift.detected") if event["model"] == name]

        add(deployment, name, customers.rows(600))
        deployment.adapted(name)
        add(deployment, name, customers.rows(600, income=lambda value, rng: 10 * value))
        deployment.adapted(name)
        deployment.wait_until(lambda: bool(announced()))
        expected = {"model": name, "position": 2400, "columns": ["income"], "predictions": False}
        assert announced() == [expected]
        deployment.wait_until(lambda: f'amend_drifted_columns{{model="{name}"}} 1.0' in scraped(deployment))
        add(deployment, name, customers.rows(600, income=lambda value, rng: 10 * value))
        deployment.adapted(name)
        deployment.wait_until(lambda: stored_position(deployment, name) == 3000)
        assert [job["kind"] for job in deployment.settled(name)].count("retrain") == 0

        with deployment.client() as client:
            policy = {"policy": {"retrain": {"on_drift": True}}}
            client.patch(f"/v1/models/{name}", json=policy).raise_for_status()
        deployment.wait_until(lambda: [j["kind"] for j in deployment.settled(name)].count("retrain") == 1)
        deployment.wait_for_ticks()
        assert [job["kind"] for job in deployment.settled(name)].count("retrain") == 1
        assert not report(deployment, name)["drifted"]
        assert report(deployment, name)["reference"]["last_position"] == 3000
        deployment.wait_until(lambda: f'amend_drifted_columns{{model="{name}"}} 0.0' in scraped(deployment))
        assert announced() == [expected]


def scraped(deployment: Deployment) -> str:
    with deployment.client() as client:
        return client.get("/metrics").text


def stored_position(deployment: Deployment, name: str) -> int:
    with deployment.database.read() as session:
        return session.get_one(DriftReport, catalog.find(session, name, None).id).position


def test_vectors_have_numbered_columns_and_several_classes_have_shares(deployment: Deployment) -> None:
    rng = np.random.default_rng(7)
    target = {"kind": "classes", "values": ["a", "b", "c"]}
    name = deployment.new_model(input={"kind": "vector", "dim": 120}, target=target)

    def send(n: int, first: int, shift: float) -> None:
        x = rng.normal(size=(n, 120))
        x[:, 7] += shift
        y = np.array(["a", "b", "c"])[np.clip(np.round(x[:, 7] + 1), 0, 2).astype(int)]
        deployment.add_examples(name, x, y, first=first)

    send(1500, 0, 0.0)
    deployment.adapted(name)
    send(700, 1500, 2.0)
    found = report(deployment, name)
    assert drifted(found) == {"x[7]"}
    assert (len(found["columns"]), found["omitted"]) == (100, 20)
    predictions = found["predictions"]
    assert (predictions["type"], predictions["drifted"]) == ("class", True)
    assert [entry["label"] for entry in predictions["bins"]] == ["a", "b", "c"]
    assert sum(entry["window"] for entry in predictions["bins"]) == predictions["window_rows"] == 700


def test_a_model_without_a_champion_has_no_drift(deployment: Deployment) -> None:
    with deployment.client() as client:
        response = client.get(f"/v1/models/{deployment.new_model()}/drift")
    assert (response.status_code, response.json()["code"]) == (409, "champion_missing")


def test_the_client_the_command_and_the_page_show_the_report(deployment: Deployment) -> None:
    customers = Customers(8)
    name = trained(deployment, customers.rows(1200))
    add(deployment, name, customers.rows(600, income=lambda value, rng: 10 * value))
    deployment.adapted(name)
    found = report(deployment, name)
    with Client(deployment.url, deployment.admin_key) as client:
        assert [column.name for column in client.drift(name).columns if column.drifted] == ["income"]
    environment = {**os.environ, "AMEND_URL": deployment.url, "AMEND_KEY": deployment.admin_key}
    amend = [str(Path(sys.executable).parent / "amend"), "models", "drift", name]
    printed = subprocess.run(amend, capture_output=True, text=True, env=environment, check=True).stdout
    assert [line.split()[0] for line in printed.splitlines() if line.endswith(" drifted")][-1] == "income"
    with httpx.Client(base_url=deployment.url, follow_redirects=True) as visitor:
        visitor.post("/sign-in", data={"key": deployment.admin_key})
        page = visitor.get(f"/models/{name}/drift").text
        link = visitor.get(f"/models/{name}").text
    assert f'href="/models/{name}/drift"' in link
    assert page.count("<svg") == len(NAMES) + 1
    assert page.index("income") < page.index("member")
    assert f"PSI {found['columns'][0]['psi']:.3f}" in page


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_the_page_fits_a_phone(deployment: Deployment, tmp_path: Path) -> None:
    customers = Customers(9)
    name = trained(deployment, customers.rows(1200))
    add(deployment, name, customers.rows(600, income=lambda value, rng: 10 * value))
    folder = Path(os.environ.get(PICTURES, tmp_path))
    with browser() as chromium:
        for scheme, width in (("light", 1280), ("dark", 390)):
            with chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:  # type: ignore[arg-type]
                page = sign_in(context, deployment, f"/models/{name}/drift")
                page.screenshot(path=folder / f"page-drift-{scheme}.png", full_page=True)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("svg.chart").count() == len(NAMES) + 1
