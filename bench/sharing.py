"""What a second worker is worth: a certificate's pass and a full retrain of a GLM, alone and shared."""

from __future__ import annotations

import json as json_module
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select

from bench.turnaround import DIM, SILENT, filled, finished
from core.tables.jobs import Worker
from tests import servers
from tests.stack import Stack

MODEL = "shared"


@dataclass(frozen=True)
class Shared:
    """Seconds with so many workers of one process and one thread."""

    workers: int
    passes: list[float]
    """Of adaptations to one removal, each with a certificate over all examples."""
    retrain: float


def measure(client: httpx.Client, workers: int, count: int) -> Shared:
    def seconds(job: dict[str, Any]) -> float:
        version = finished(client, job["id"])["version"]
        return float(client.get(f"/v1/models/{MODEL}/versions/{version}").json()["cost"]["seconds"])

    retrain = seconds(client.post(f"/v1/models/{MODEL}/retrains").raise_for_status().json())
    passes = []
    for i in range(count):
        gone = {"ids": [f"e{7 * (workers * count + i)}"]}
        job = client.post(f"/v1/models/{MODEL}/removals", json=gone).raise_for_status().json()["job"]
        passes.append(seconds({"id": job}))
    return Shared(workers, passes, retrain)


def run(rows: int, workers: int, count: int, postgresql: bool, json: Path | None) -> None:
    """On SQLite and the embedded broker, or on PostgreSQL; everything on this machine."""
    console, found = Console(), []
    with TemporaryDirectory() as folder, servers.postgres() as postgres:
        url = postgres.create_database("sharing") if postgresql else ""
        stack = Stack(Path(folder), url, AMEND_WORKER_PROCESSES="1")
        try:
            stack.add("worker.broker")
            stack.start()
            stack.add("worker.scheduler")
            with stack.client() as client:
                filled(client, MODEL, rows, policy={**SILENT, "certify": "always"})
                for number in range(1, workers + 1):
                    stack.add("worker")
                    stack.wait_until(lambda wanted=number: alive(stack) >= wanted)  # type: ignore[misc]
                    console.print(f"{number} workers ...")
                    found.append(measure(client, number, count))
        finally:
            stack.stop()
    title = f"GLM, P = {DIM + 1}, N = {rows:,}: seconds"
    table = Table(title=title, title_justify="left")
    for column in ("workers", "certified removal", "ratio", "retrain and certificate", "ratio"):
        table.add_column(column, justify="right")
    for each in found:
        one, whole = statistics.median(each.passes), each.retrain
        ratios = statistics.median(found[0].passes) / one, found[0].retrain / whole
        table.add_row(str(each.workers), f"{one:.2f}", f"{ratios[0]:.2f}", f"{whole:.2f}", f"{ratios[1]:.2f}")
    console.print(table)
    if json is not None:
        json.write_text(json_module.dumps([asdict(each) for each in found]))


def alive(stack: Stack) -> int:
    with stack.database.read() as session:
        return session.scalar(select(func.count()).select_from(Worker)) or 0
