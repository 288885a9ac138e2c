"""The package that docs/how-to/write-a-plugin.md shows: installed, found by its entry point, trained and adapted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "how-to" / "write-a-plugin.md").read_text()


SERVED = """
import asyncio, json, sys
from pathlib import Path

import httpx
import numpy as np
from core.database import Database
from core.keys import api_keys
from core.settings import Settings
from core.tables.keys import Scope
from migrations import runner
from service.app import build
from service.http.middleware import RequestLog
from tests.core.tracking.tracked_model import TrackedModel

settings, spec = Settings(home=Path(sys.argv[1])), json.loads(sys.argv[2])
database = Database(settings)
runner.upgrade(database)
x = np.random.default_rng(0).normal(size=(400, 2))
rows = [{"id": str(i), "x": row.tolist(), "y": int(row[0] * row[1] > 0)} for i, row in enumerate(x)]
with database.write() as session:
    headers = {"Authorization": "Bearer " + api_keys.issue(session, "tests", [Scope.ADMIN], None)[1]}


async def use():
    app, model = build(settings), "/v1/models/" + spec["name"]
    transport = httpx.ASGITransport(RequestLog(app))
    client = httpx.AsyncClient(transport=transport, base_url="http://amend", headers=headers)
    async with app.router.lifespan_context(app), client as api:
        told = {"created": (await api.post("/v1/models", json={**spec, "training": {"max_epochs": 60}})).status_code}
        narrow = {**spec, "name": "bad", "architecture": {**spec["architecture"], "width": 0}}
        bad = await api.post("/v1/models", json=narrow)
        told["bad"] = [bad.status_code, bad.json()["code"]]
        (await api.post(model + "/examples", json={"examples": rows})).raise_for_status()
        TrackedModel(database, settings, spec["name"]).adapt()
        answer = (await api.post(model + "/predictions", json={"inputs": [row["x"] for row in rows]})).json()
        right = np.mean([output["class"] == row["y"] for output, row in zip(answer["outputs"], rows)])
        return {**told, "right": bool(right > 0.85)}


print(json.dumps(asyncio.run(use())))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_package_of_the_page_can_be_installed_and_trained(tmp_path: Path) -> None:
    source, site = tmp_path / "residual-nets", tmp_path / "site"
    source.mkdir()
    module, script = blocks("python")
    (source / "pyproject.toml").write_text(blocks("toml")[0])
    (source / "residual_nets.py").write_text(module)
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *pip, str(source)], check=True, timeout=120)
    paths = os.pathsep.join([str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = re.match(r"accuracy ([\d.]+) after (\d+) gradients", ran.stdout)
    assert found, ran.stdout
    assert float(found[1]) > 0.85
    described = blocks("json")[0]
    ran = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path / "home"), described],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"created": 201, "bad": [422, "spec_invalid"], "right": True}
