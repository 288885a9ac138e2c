"""From a removal's answer to the champion without it, on the embedded default; and the progress of a long training."""

from __future__ import annotations

import json as json_module
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.contestants import CONTENT_TYPES
from tests.stack import Stack

DIM = 64
BATCH = 20_000
SILENT = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}
TARGETS = {"never": 2.0, "always": 4.0}
BOOKKEEPING = 0.3
STILL = 5.0
"""Seconds for which a long job may say nothing new."""


@dataclass(frozen=True)
class Turnaround:
    """How long removals took, in seconds."""

    certify: str
    total: list[float]
    """From the 202 to the moment when the champion no longer stands for the example."""
    engine: list[float]
    """Of it, the mathematics with the reading that it asked for."""

    @property
    def rest(self) -> list[float]:
        """Celery and bookkeeping: messages, leases, files, evaluation, promotion, and waiting."""
        return [total - engine for total, engine in zip(self.total, self.engine, strict=True)]


@dataclass(frozen=True)
class Training:
    """A long training, as somebody saw it who looked all the time."""

    rows: int
    seconds: float
    longest_still: float


@contextmanager
def embedded(folder: Path) -> Iterator[Stack]:
    """Amend as it runs by default: SQLite, Valkey from a wheel, one worker."""
    stack = Stack(folder)
    # a user's machine: as many threads as the workers take for themselves
    stack.environment.pop("OMP_NUM_THREADS")
    try:
        stack.add("worker.broker")
        stack.start()
        stack.add("worker")
        stack.add("worker.scheduler")
        stack.wait_until(stack.ready)
        yield stack
    finally:
        stack.stop()


def filled(client: httpx.Client, name: str, rows: int, each: int = 1, **spec: Any) -> None:
    """A model with so many examples, `each` of them about one person."""
    body = {"name": name, "input": {"kind": "vector", "dim": DIM}, "target": {"kind": "binary"}, **spec}
    client.post("/v1/models", json=body).raise_for_status()
    rng = np.random.default_rng(0)
    rule = rng.normal(size=DIM) / 4
    for start in range(0, rows, BATCH):
        x = rng.normal(size=(min(BATCH, rows - start), DIM)).astype(np.float32)
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ rule))).astype(np.int64)
        ids = pa.array([f"e{start + i}" for i in range(len(x))])
        people = pa.array([f"s{(start + i) // each}" for i in range(len(x))])
        vectors = pa.FixedSizeListArray.from_arrays(x.ravel(), DIM)
        batch = pa.record_batch({"id": ids, "subject": people, "y": y, "x": vectors})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        headers = {"Content-Type": CONTENT_TYPES["Arrow"]}
        answer = client.post(f"/v1/models/{name}/examples", content=sink.getvalue().to_pybytes(), headers=headers)
        answer.raise_for_status()


def finished(client: httpx.Client, job_id: str) -> dict[str, Any]:
    while True:
        job = client.get(f"/v1/jobs/{job_id}", params={"wait": 30}).raise_for_status().json()
        if job["state"] not in ("queued", "running"):
            assert job["state"] == "succeeded", job
            return dict(job)


def removals(client: httpx.Client, certify: str, rows: int, count: int) -> Turnaround:
    name = f"removals-{certify}"
    filled(client, name, rows, policy={**SILENT, "certify": certify})
    finished(client, client.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"])
    total, engine = [], []
    for i in range(count):
        removal = client.post(f"/v1/models/{name}/removals", json={"ids": [f"e{7 * i}"]}).raise_for_status().json()
        start = time.perf_counter()
        while client.get(f"/v1/models/{name}").json()["pending"]:
            time.sleep(0.002)
        total.append(time.perf_counter() - start)
        version = finished(client, removal["job"])["version"]
        engine.append(client.get(f"/v1/models/{name}/versions/{version}").json()["cost"]["seconds"])
    return Turnaround(certify, total, engine)


def long_training(client: httpx.Client, rows: int) -> Training:
    """A retrain of a network, looked at all the time."""
    filled(client, "network", rows, architecture={"kind": "mlp", "hidden": [100]}, policy=SILENT)
    job = client.post("/v1/models/network/retrains").raise_for_status().json()
    start = last = time.perf_counter()
    said, longest = None, 0.0
    while job["state"] in ("queued", "running"):
        job = client.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
        if (job["progress"], job["message"]) != said:
            now = time.perf_counter()
            longest, last, said = max(longest, now - last), now, (job["progress"], job["message"])
        time.sleep(0.1)
    assert job["state"] == "succeeded", job
    return Training(rows, time.perf_counter() - start, longest)


def table(figures: list[Turnaround], rows: int) -> Table:
    title = f"From the answer to a removal to the champion without it: GLM, P = {DIM + 1}, N = {rows:,}, seconds"
    out = Table(title=title, title_justify="left")
    for column in ("certificate", "median", "target", "worst", "engine", "the rest", "target", "met"):
        out.add_column(column, justify="left" if column == "certificate" else "right")
    for f in figures:
        middle, rest = statistics.median(f.total), statistics.median(f.rest)
        met = middle < TARGETS[f.certify] and rest <= BOOKKEEPING
        out.add_row(
            {"never": "without", "always": "with"}[f.certify],
            *(f"{middle:.3f}", f"{TARGETS[f.certify]:g}", f"{max(f.total):.3f}"),
            *(f"{statistics.median(f.engine):.3f}", f"{rest:.3f}", f"{BOOKKEEPING:g}", "yes" if met else "NO"),
        )
    return out


def run(rows: int, count: int, json: Path | None) -> None:
    """Everything embedded: SQLite, Valkey from a wheel, one worker."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        figures = []
        for certify in TARGETS:
            console.print(f"removals, certify {certify} ...")
            figures.append(removals(client, certify, rows, count))
        console.print(table(figures, rows))
        console.print("the progress of a network's training ...")
        training = long_training(client, rows)
    words = f"MLP 100, N = {rows:,}: {training.seconds:.0f} s, {training.longest_still:.1f} s without news at the most"
    met = "met" if training.longest_still <= STILL else "NOT met"
    console.print(f"{words} (target {STILL:g}: {met})")
    if json is not None:
        json.write_text(json_module.dumps({"removals": [asdict(f) for f in figures], "training": asdict(training)}))
