"""What a data scientist sees: a model with some versions in MLflow, in a real browser, after MLflow was away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import HttpCredentials, Page
from sklearn.datasets import load_digits

from amend.demo.mlflow_timeline import Mlflow
from core.tracking.links import CLASSIC
from tests.browser import browser
from tests.mlflow_server import PASSWORD, MlflowServer
from tests.worker.deployment import Deployment

NAME = "digits"
STEPS = 5
PICTURES = "AMEND_TEST_PICTURES"
"""A folder in which to keep the screenshots, for the docs."""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, MlflowServer]]:
    """A model that lived through some versions and two retrains while MLflow was down, and MLflow back again."""
    server = MlflowServer()
    deployment = Deployment(
        tmp_path_factory.mktemp("dashboard"), AMEND_MLFLOW_URL=server.url, AMEND_MLFLOW_PASSWORD=PASSWORD
    )
    try:
        deployment.add("worker.broker")
        deployment.start()
        deployment.add("worker")
        deployment.add("worker.scheduler")
        deployment.wait_until(lambda: deployment.ready())
        live(deployment)
        server.start()
        deployment.wait_until(
            lambda: all(v["mlflow"] for v in deployment.get(f"/v1/models/{NAME}/versions")["items"]), 120
        )
        yield deployment, server
    finally:
        deployment.stop()
        server.stop(signal.SIGKILL)


def live(deployment: Deployment) -> None:
    """Every second digit comes in by and by, most of digit 8 later than the others; some are removed."""
    x, y = load_digits(return_X_y=True)
    draws = np.random.default_rng(0).random(len(y))
    order = np.argsort(np.where(y == 8, draws**0.2, draws), kind="stable")
    x, y = x[order][::2] / 16, y[order][::2]
    policy = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}, "holdout": 0.25}
    spec = {"input": {"kind": "vector", "dim": 64}, "target": {"kind": "classes", "values": list(range(10))}}
    deployment.post("/v1/models", {"name": NAME, **spec, "policy": policy})
    parts = np.array_split(np.arange(len(y)), STEPS)
    for i, part in enumerate(parts):
        deployment.add_examples(NAME, x[part], y[part], first=int(part[0]))
        if i > 2:
            deployment.post(f"/v1/models/{NAME}/removals", {"ids": [f"e{10 * i + k}" for k in range(10)]})
        retrained = i in (2, STEPS - 1)
        job = deployment.post(f"/v1/models/{NAME}/{'retrains' if retrained else 'adaptations'}")
        assert deployment.ended(job["id"])["state"] == "succeeded"


def test_what_a_data_scientist_sees(dashboard: tuple[Deployment, MlflowServer], tmp_path: Path) -> None:
    deployment, server = dashboard
    everything_is_there_once(deployment, server)
    mlflow_predicts_as_the_service_does(deployment, server)
    our_own_page_leads_there(deployment, server)
    position = deployment.get(f"/v1/models/{NAME}/comparisons")["items"][0]["position"]
    timeline = Mlflow(server.url, PASSWORD).timeline(NAME, position)
    versions = deployment.get(f"/v1/models/{NAME}/versions")["items"]
    assert timeline.lines["adapted"].keys() == {version["position"] for version in versions}
    the_timeline_shows_adapted_against_retrained(server, timeline.page, tmp_path)


def everything_is_there_once(deployment: Deployment, server: MlflowServer) -> None:
    client = MlflowClient(server.url)
    jobs = {job["id"] for job in deployment.get(f"/v1/jobs?model={NAME}&limit=1000")["items"]}
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    versions = deployment.get(f"/v1/models/{NAME}/versions")["items"]
    # one for each version: jobs that found nothing to do are not shown
    assert len(runs) == len(versions)
    assert len({run.data.tags["amend.job"] for run in runs} & jobs) == len(versions)
    registered = client.search_model_versions(f"name = '{NAME}'")
    assert sorted(int(v.version) for v in registered) == sorted(int(v["mlflow"]["version"]) for v in versions)
    assert len({v["mlflow"]["version"] for v in versions}) == len(versions)
    page = f"{server.url}/#/models/{NAME}"
    pages = [f"{page}/versions/{v['mlflow']['version']}{CLASSIC}" for v in versions]
    assert [v["mlflow"]["url"] for v in versions] == pages
    assert deployment.get(f"/v1/models/{NAME}")["mlflow"] == {"url": f"{page}{CLASSIC}"}
    timeline = client.get_experiment_by_name(f"{NAME} timeline")
    assert timeline is not None
    lines = {run.info.run_name: run for run in client.search_runs([timeline.experiment_id])}
    assert set(lines) == {"adapted", "retrained", "frozen"}
    points = client.get_metric_history(lines["adapted"].info.run_id, "accuracy/holdout")
    served = {p["version"] for p in deployment.get(f"/v1/models/{NAME}/promotions")["items"]}
    assert len(served) >= STEPS
    assert sorted(p.step for p in points) == sorted(served)
    compared = client.get_metric_history(lines["retrained"].info.run_id, "accuracy/holdout")
    retrained = {c["retrained"] for c in deployment.get(f"/v1/models/{NAME}/comparisons")["items"]}
    assert retrained <= {p.step for p in compared}


def mlflow_predicts_as_the_service_does(deployment: Deployment, server: MlflowServer) -> None:
    x = load_digits().data[:20] / 16
    ours = deployment.post(f"/v1/models/{NAME}/predictions", {"inputs": x.astype(np.float32).tolist()})["outputs"]
    mlflow.set_tracking_uri(server.url)
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
    theirs: list[dict[str, Any]] = model.predict(pd.DataFrame(x)).to_dict("records")
    assert [row["class"] for row in theirs] == [row["class"] for row in ours]
    for a, b in zip(theirs, ours, strict=True):
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-6)


def our_own_page_leads_there(deployment: Deployment, server: MlflowServer) -> None:
    timeline = MlflowClient(server.url).get_experiment_by_name(f"{NAME} timeline")
    assert timeline is not None
    with httpx.Client(base_url=deployment.url) as visitor:
        visitor.post("/sign-in", data={"key": deployment.admin_key})
        assert f'href="{server.url}/#/models/{NAME}{CLASSIC}"' in visitor.get(f"/models/{NAME}").text
        place = visitor.get(f"/models/{NAME}/timeline").headers["location"]
    assert place.startswith(f"{server.url}/#/experiments/{timeline.experiment_id}/")


def the_timeline_shows_adapted_against_retrained(server: MlflowServer, address: str, tmp_path: Path) -> None:
    outside: list[str] = []
    with browser() as chromium:
        with pytest.raises(PlaywrightError, match="INVALID_AUTH_CREDENTIALS"):  # it asked, and nobody told it
            chromium.new_page().goto(server.url)
        known: HttpCredentials = {"username": "amend", "password": PASSWORD}
        page = chromium.new_page(viewport={"width": 1600, "height": 1000}, http_credentials=known)
        page.on("request", lambda request: outside.append(request.url) if server.url not in request.url else None)
        page.goto(address)
        # metrics on new examples come first, and those on the holdout further down, where they are drawn when seen
        page.get_by_text("Test-then-train/accuracy", exact=True).first.wait_for(timeout=60_000)
        for run in ("adapted", "retrained", "frozen"):
            assert page.get_by_text(run, exact=True).count() >= 1, f"no run {run!r} on the page"
        drawn = page.locator("g.scatterlayer .trace")
        page.wait_for_function("document.querySelectorAll('g.scatterlayer .trace').length >= 3", timeout=60_000)
        assert drawn.count() >= 3
        assert page.get_by_text("agree on").count() >= 1, "the answer is not the first thing to read"
        assert page.get_by_text("Agent versions").count() == 0, "these are the pages for language models"
        assert page.get_by_text("Ask questions about your experiments").count() == 0, "the assistant is in the way"
        keep(page, "mlflow-timeline.png", tmp_path)
    assert [url for url in outside if not url.startswith(("data:", "blob:"))] == []


def keep(page: Page, name: str, otherwise: Path) -> None:
    """A screenshot of what people see first."""
    path = Path(os.environ.get(PICTURES, otherwise)) / name
    page.screenshot(path=path)
    assert path.stat().st_size > 20_000
