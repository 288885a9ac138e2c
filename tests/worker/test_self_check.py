"""The self-check through REST: a module whose state is not in its weights never becomes a version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from core.database import Database
from core.keys import api_keys
from core.settings import Settings
from core.tables.jobs import JobKind
from core.tables.keys import Scope
from migrations import runner
from service.app import build
from service.http.middleware import RequestLog
from tests.core.tracking.tracked_model import TrackedModel

PACKAGE = '''
from torch import nn


class RunningMean(nn.Module):
    """Subtracts a running mean that is neither a parameter nor a buffer, so that no version contains it."""

    mean = 0.0

    def forward(self, x):
        if self.training:
            self.mean = 0.7 * self.mean + 0.3 * x.detach().mean(0)
        return x - self.mean


def build(shape, outputs, norm="hidden"):
    layer = {"hidden": RunningMean, "batch": lambda: nn.BatchNorm1d(16), "layer": lambda: nn.LayerNorm(16)}[norm]()
    return nn.Sequential(nn.Linear(shape[0], 16), layer, nn.ReLU(), nn.Linear(16, outputs))
'''
ROWS = 400


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that provides the architecture `normalised`."""
    site = tmp_path / "site"
    (site / "normalised_nets-1.0.dist-info").mkdir(parents=True)
    (site / "normalised_nets.py").write_text(PACKAGE)
    (site / "normalised_nets-1.0.dist-info" / "METADATA").write_text("Name: normalised-nets\nVersion: 1.0\n")
    entry = "[amend.architectures]\nnormalised = normalised_nets:build\n"
    (site / "normalised_nets-1.0.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(site))


def train(home: Path, norm: str, holdout: bool) -> dict[str, Any]:
    """Create a model with this kind of normalisation through REST, train it, and return what REST says about it."""
    settings = Settings(home=home)
    database = Database(settings)
    runner.upgrade(database)
    with database.write() as session:
        headers = {"Authorization": "Bearer " + api_keys.issue(session, "tests", [Scope.ADMIN], None)[1]}
    x = 5 + 3 * np.random.default_rng(0).normal(size=(ROWS, 2))  # far from the means that a new BatchNorm assumes
    y = (x[:, 0] > x[:, 1]).astype(int)
    split = {} if holdout else {"split": "train"}
    rows = [{"id": str(i), "x": x[i].tolist(), "y": int(y[i]), **split} for i in range(ROWS)]
    spec = {
        "name": "normalised",
        "input": {"kind": "vector", "dim": 2},
        "target": {"kind": "binary"},
        "architecture": {"kind": "plugin", "name": "normalised", "norm": norm},
        "training": {"max_epochs": 30},
    }

    async def use() -> dict[str, Any]:
        app = build(settings)
        transport = httpx.ASGITransport(RequestLog(app))  # type: ignore[arg-type]
        client = httpx.AsyncClient(transport=transport, base_url="http://amend", headers=headers)
        async with app.router.lifespan_context(app), client as api:
            (await api.post("/v1/models", json=spec)).raise_for_status()
            (await api.post("/v1/models/normalised/examples", json={"examples": rows})).raise_for_status()
            job = await asyncio.to_thread(TrackedModel(database, settings, "normalised").job, JobKind.ADAPT)
            inputs = {"inputs": x.tolist()}
            return {
                "job": (await api.get(f"/v1/jobs/{job}")).json(),
                "versions": (await api.get("/v1/models/normalised/versions")).json()["items"],
                "predictions": await api.post("/v1/models/normalised/predictions", json=inputs),
                "y": y,
            }

    return asyncio.run(use())


def files_of_versions(home: Path) -> list[Path]:
    return [file for file in (home / "artifacts" / "models").rglob("*") if file.is_file()]


@pytest.mark.parametrize("holdout", [True, False])
def test_hidden_state_is_found_before_a_version_is_recorded(package: None, tmp_path: Path, holdout: bool) -> None:
    found = train(tmp_path / "home", "hidden", holdout)
    assert found["job"]["state"] == "failed"
    assert found["job"]["error"]["code"] == "self_check_failed"
    assert not found["versions"]
    assert found["predictions"].json()["code"] == "champion_missing"
    assert not files_of_versions(tmp_path / "home")


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_network_whose_state_is_in_its_version_is_promoted(package: None, tmp_path: Path, norm: str) -> None:
    found = train(tmp_path / "home", norm, holdout=True)
    assert len(files_of_versions(tmp_path / "home")) == 1
    assert found["job"]["state"] == "succeeded"
    served = [output["class"] for output in found["predictions"].json()["outputs"]]
    assert np.mean(served == found["y"]) > 0.9
    assert found["versions"][0]["metrics"]["accuracy"] > 0.8
