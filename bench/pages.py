"""How long the web pages of a model with a long history take to load, on the embedded default.

A real worker makes the first versions; copies of them fill the history.
"""

from __future__ import annotations

import json as json_module
import statistics
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from bench.turnaround import DIM, MANUAL_POLICY, create_filled_model, embedded, wait_for_job
from core.database import Base
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Comparison, Promotion, Version, VersionState

MAX_MILLISECONDS = 150.0
NAME = "history-1"
ROWS = 2_000
RETRAIN_EVERY = 10
"""Every so many versions, a copy of the comparison with a full retrain is added."""
ERASURES = 100


def create_history(client: httpx.Client, name: str) -> None:
    """A model with a trained version, an adapted one that scored new examples, and a comparison with a retrain."""
    create_filled_model(client, name, ROWS, policy={**MANUAL_POLICY, "versions": None})
    wait_for_job(client, client.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"])
    xs = [[(i * j % 17) / 17 for j in range(DIM)] for i in range(400)]
    new = [{"id": f"new{i}", "subject": f"n{i}", "x": x, "y": i % 2} for i, x in enumerate(xs)]
    client.post(f"/v1/models/{name}/examples", json={"examples": new}).raise_for_status()
    wait_for_job(client, client.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"])
    wait_for_job(client, client.post(f"/v1/models/{name}/retrains").raise_for_status().json()["id"])


def extend_history(session: Session, name: str, versions: int) -> None:
    """Copy the adapted version, its window and the comparison until there are so many versions and windows."""
    model = session.scalars(select(Model).where(Model.name == name)).one()
    adapted = session.get_one(Version, (model.id, 2))
    window = session.scalars(select(QualityWindow).where(QualityWindow.model_id == model.id)).first()
    comparison = session.scalars(select(Comparison).where(Comparison.model_id == model.id)).first()
    assert window is not None
    assert comparison is not None
    newest = session.scalar(select(func.max(Version.number)).where(Version.model_id == model.id)) or 0
    for number in range(newest + 1, versions + 1):
        age = timedelta(hours=versions - number)
        later = {"position": model.head + number, "created_at": adapted.created_at - age}
        session.add(Version(**copy_of(adapted, number=number, state=VersionState.SUPERSEDED, **later)))
        session.add(Promotion(model_id=model.id, version=number, previous=number - 1, by="policy"))
        span = {"first_position": later["position"], "last_position": later["position"]}
        session.add(QualityWindow(**copy_of(window, id=None, job_id=str(number), start=window.start - age, **span)))
        if number % RETRAIN_EVERY == 0:
            session.add(Comparison(**copy_of(comparison, id=None, adapted=number - 1, retrained=number)))
    model.head += versions


def copy_of(row: Base, **changes: Any) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs} | changes


def measure(client: httpx.Client, path: str, count: int) -> float:
    """Median time of a page in milliseconds, after one request that fills the caches."""
    taken = []
    for _ in range(count + 1):
        start = time.perf_counter()
        client.get(path).raise_for_status()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[1:])


def run(models: int, versions: int, count: int, json: Path | None) -> None:
    """Everything embedded: SQLite, Valkey from a wheel, one worker."""
    console = Console()
    pages = {
        "overview": "/",
        "model": f"/models/{NAME}",
        "model, older versions": f"/models/{NAME}?versions=200&promotions=200",
        "version": f"/models/{NAME}/versions/2",
        "drift": f"/models/{NAME}/drift",
        "privacy": "/privacy",
    }
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        console.print(f"{models} models, {versions} versions each ...")
        for name in (f"history-{i}" for i in range(1, models + 1)):
            create_history(client, name)
            with stack.database.write() as session:
                extend_history(session, name, versions)
        people = [{"subject": f"s{i}", "hold": True} for i in range(ERASURES)]
        client.post("/v1/erasures/batch", json={"requests": people}).raise_for_status()
        signed_in = client.post("/sign-in", data={"key": stack.admin_key}, headers={"Origin": str(client.base_url)})
        assert signed_in.status_code == 303, signed_in.text
        figures = {name: measure(client, path, count) for name, path in pages.items()}
    out = Table(
        title=f"Milliseconds to load a page: {models} models, {versions} versions and windows each",
        title_justify="left",
    )
    for column in ("page", f"median of {count}", "target", "met"):
        out.add_column(column, justify="left" if column == "page" else "right")
    for name, taken in figures.items():
        out.add_row(name, f"{taken:.0f}", f"{MAX_MILLISECONDS:g}", "yes" if taken < MAX_MILLISECONDS else "NO")
    console.print(out)
    if json is not None:
        json.write_text(json_module.dumps(figures))
