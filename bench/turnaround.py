"""Time from the response to a removal until the adapted champion serves, on the embedded default, compared with a
retrain; and how often a long training reports progress.
"""

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
from bench.engine.tables import Target
from tests.stack import Stack

DIM = 64
BATCH = 20_000
MANUAL_POLICY = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}
CERTIFICATES = {"always": "by bound", "never": "none", "pass": "by a pass"}
"""Values of policy.certify, with their names in the table. The pass comes last because it moves the anchor."""
SECONDS, SPEED_UP, LARGE = 0.3, 50.0, 1_000_000
"""Targets: seconds from the response to the certified champion that serves; and the speed-up over a retrain, for models
of at least so many rows."""
BOOKKEEPING = 0.3
MAX_SILENCE_SECONDS = 5.0
"""A long job must report progress at least this often."""


@dataclass(frozen=True)
class Turnaround:
    """How long removals took, in seconds."""

    rows: int
    certify: str
    total: list[float]
    """From the 202 response to a prediction by the champion without the example."""
    engine: list[float]
    """Part of the total: computations of the engine, including the examples that it reads."""
    passes: int
    """Total number of passes over the examples."""
    bound: float | None
    """The largest relative bound."""
    retrain: float
    """Seconds from the request of a full retrain to its end."""

    @property
    def rest(self) -> list[float]:
        """Everything else: messages, leases, files, evaluation, promotion, and waiting."""
        return [total - engine for total, engine in zip(self.total, self.engine, strict=True)]

    @property
    def speed_up(self) -> float:
        """Duration of a retrain divided by the median of the total."""
        return self.retrain / statistics.median(self.total)


@dataclass(frozen=True)
class Training:
    """Progress of a long training, polled ten times per second."""

    rows: int
    seconds: float
    longest_still: float


@contextmanager
def embedded(folder: Path, worker: str = "worker", database_url: str = "") -> Iterator[Stack]:
    """Amend as it runs by default: SQLite, unless another database is given, Valkey from a wheel, one worker."""
    stack = Stack(folder, database_url)
    # as on a user's machine: workers choose their number of threads
    stack.environment.pop("OMP_NUM_THREADS")
    try:
        stack.add("worker.broker")
        stack.start()
        stack.add(worker)
        stack.add("worker.scheduler")
        stack.wait_until(stack.ready)
        yield stack
    finally:
        stack.stop()


def create_filled_model(client: httpx.Client, name: str, rows: int, each: int = 1, **spec: Any) -> None:
    """Create a model with `rows` examples, `each` of them about one person."""
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


def wait_for_job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    while True:
        job = client.get(f"/v1/jobs/{job_id}", params={"wait": 30}).raise_for_status().json()
        if job["state"] not in ("queued", "running"):
            assert job["state"] == "succeeded", job
            return dict(job)


def turnarounds(client: httpx.Client, rows: int, count: int) -> Iterator[Turnaround]:
    """Create a model, retrain it, and measure removals with each kind of certificate."""
    name = f"removals-{rows}"
    create_filled_model(client, name, rows, policy={**MANUAL_POLICY, "certify": "always"})
    wait_for_job(client, client.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"])
    start = time.perf_counter()
    wait_for_job(client, client.post(f"/v1/models/{name}/retrains").raise_for_status().json()["id"])
    retrain, gone = time.perf_counter() - start, 0
    for certify in CERTIFICATES:
        client.patch(f"/v1/models/{name}", json={"policy": {"certify": certify}}).raise_for_status()
        total, engine, passes, bounds = [], [], 0, []
        for _ in range(count):
            removal = client.post(f"/v1/models/{name}/removals", json={"ids": [f"e{7 * gone}"]}).raise_for_status()
            gone += 1
            start = time.perf_counter()
            while client.get(f"/v1/models/{name}").json()["pending"]:
                time.sleep(0.002)
            served = client.post(f"/v1/models/{name}/predictions", json={"inputs": [[0.0] * DIM]}).raise_for_status()
            total.append(time.perf_counter() - start)
            version = wait_for_job(client, removal.json()["job"])["version"]
            assert served.json()["version"] == version, "an older version was served"
            told = client.get(f"/v1/models/{name}/versions/{version}").json()
            engine.append(told["cost"]["seconds"])
            passes += told["cost"]["data_passes"]
            if (certificate := told.get("certificate")) and certificate.get("relative") is not None:
                bounds.append(certificate["relative"])
        yield Turnaround(rows, certify, total, engine, passes, max(bounds, default=None), retrain)


def long_training(client: httpx.Client, rows: int) -> Training:
    """Retrain a network and poll its progress."""
    create_filled_model(client, "network", rows, architecture={"kind": "mlp", "hidden": [100]}, policy=MANUAL_POLICY)
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


def table(figures: list[Turnaround]) -> Table:
    title = f"Seconds from the response to a removal until the adapted champion serves: GLM, P = {DIM + 1}"
    out = Table(title=title, title_justify="left")
    columns = ("examples", "certificate", "median", "worst", "engine", "other", "bound", "passes", "retrain")
    for column in (*columns, "times faster"):
        out.add_column(column, justify="left" if column == "certificate" else "right")
    for f in figures:
        out.add_row(
            *(f"{f.rows:,}", CERTIFICATES[f.certify], f"{statistics.median(f.total):.3f}", f"{max(f.total):.3f}"),
            *(f"{statistics.median(f.engine):.3f}", f"{statistics.median(f.rest):.3f}"),
            *("" if f.bound is None else f"{f.bound:.1e}", str(f.passes), f"{f.retrain:.2f}", f"{f.speed_up:.0f}"),
        )
    return out


def targets(figures: list[Turnaround]) -> list[Target]:
    """Targets for removals with a certificate by bound, and for the time outside the engine."""
    out = []
    for f in (f for f in figures if f.certify == "always"):
        out.append(Target(f"median at {f.rows:,}", statistics.median(f.total), SECONDS))
        if f.rows >= LARGE:
            out.append(Target(f"times faster than a retrain at {f.rows:,}", f.speed_up, SPEED_UP, True))
    out.append(Target("time outside the engine", max(statistics.median(f.rest) for f in figures), BOOKKEEPING))
    return out


def run(rows: list[int], count: int, json: Path | None) -> None:
    """Everything embedded: SQLite, Valkey from a wheel, one worker."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        figures = []
        for each in rows:
            console.print(f"{each:,} examples ...")
            figures += list(turnarounds(client, each, count))
        console.print(table(figures))
        wanted = targets(figures)
        for words, reached in (("met", True), ("NOT met", False)):
            if found := [str(target) for target in wanted if target.met is reached]:
                console.print(f"{words}: {'; '.join(found)}", markup=False, highlight=False)
        console.print("Training a network ...")
        training = long_training(client, min(rows))
    longest = f"{training.longest_still:.1f} s at most without progress"
    words = f"MLP 100, N = {training.rows:,}: {training.seconds:.0f} s, {longest}"
    met = "met" if training.longest_still <= MAX_SILENCE_SECONDS else "NOT met"
    console.print(f"{words} (target {MAX_SILENCE_SECONDS:g}: {met})")
    if json is not None:
        json.write_text(json_module.dumps({"removals": [asdict(f) for f in figures], "training": asdict(training)}))
