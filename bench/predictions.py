"""Predictions of the same logistic model by Amend's service and by `mlflow models serve`: requests/s and latency."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import torch
from rich.table import Table

from bench.baselines import FEATURES, Batches, mlflow_serving
from bench.contestants import vector_model
from bench.ingest import middle_ratio
from bench.wire import Connection, Service, amend, request

DELTA = 5.0
TARGET = 5.0
"""Required ratio of requests/s to those of mlflow."""
BODIES = 32
"""Number of different requests, which are sent in turn."""


@dataclass(frozen=True)
class Figure:
    """Result for one number of rows per request and of connections. Pairs are for Amend and mlflow; latencies are in
    milliseconds.
    """

    rows: int
    connections: int
    requests_per_second: tuple[float, float]
    p50: tuple[float, float]
    p99: tuple[float, float]
    ratio: float
    target: float


def predictions(rounds: int, seconds: float) -> Iterator[Figure]:
    """Measure both servers alternately, with 1 and 100 rows per request, over one and four connections."""
    from sklearn.linear_model import LogisticRegression

    data = Batches().one(2_000)
    noisy = (data.x[:, 0] + Batches(seed=1).one(2_000).x[:, 0] > 0).astype(np.int64)
    with TemporaryDirectory() as folder, amend(Path(folder) / "home") as service:
        name = "logistic"
        service.post("/v1/models", {**vector_model(name), "regularizer": {"kind": "l2", "delta": DELTA}})
        record_champion(service, name, data.x, noisy)
        theirs = LogisticRegression(C=1 / DELTA, max_iter=1_000).fit(data.x, noisy)
        place = Path(folder) / "mlflow"
        place.mkdir()
        with mlflow_serving(theirs, place) as port:
            servers = [
                (service.port, f"/v1/models/{name}/predictions", service.key),
                (port, "/invocations", ""),
            ]
            require_same_predictions(servers)
            for rows in (1, 100):
                for connections in (1, 4):
                    yield compare(servers, rows, connections, rounds, seconds)


def record_champion(service: Service, name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Train a version and promote it, as a worker would."""
    from core.database import Database
    from core.kprior import Examples, train
    from core.ledger.digest import EMPTY, update_digest
    from core.models import catalog
    from core.promotion.decision import promote
    from core.settings import Settings
    from core.tables.versions import VersionKind
    from core.versions import drafts
    from core.versions.store import Store, folder_of

    os.environ.update(service.environment)
    settings = Settings()
    database = Database(settings)
    with database.write() as session:
        model = catalog.find(session, name, None, lock=True)
        examples = Examples(torch.arange(len(x)), torch.from_numpy(x), torch.from_numpy(y).double()[:, None])
        trained = train(model.spec, [examples])
        dataset = update_digest(settings.secret, EMPTY, [examples])
        draft = drafts.VersionDraft(
            trained.state, VersionKind.TRAINED, "retrain", model.head, dataset, trained.cost, {}
        )
        stored = Store(settings.artifacts).put(folder_of(model.id), trained.state.to_bytes())
        version = drafts.record(session, model, draft, stored)
        promote(session, model, version, by="bench")
    database.close()


def bodies(rows: int, count: int = BODIES) -> list[bytes]:
    made = Batches(seed=2)
    return [orjson.dumps({"inputs": made.one(rows).x}, option=orjson.OPT_SERIALIZE_NUMPY) for _ in range(count)]


def require_same_predictions(servers: list[tuple[int, str, str]]) -> None:
    """Check that both servers make the same predictions; otherwise the comparison is meaningless."""
    answers: list[dict[str, Any]] = []
    for port, path, key in servers:
        connection = Connection(port)
        answers.append(orjson.loads(connection.send(request(path, bodies(100)[0], key=key))))
        connection.close()
    mine, other = [o["class"] for o in answers[0]["outputs"]], answers[1]["predictions"]
    assert mine == other, f"{mine} {other}"


def compare(servers: list[tuple[int, str, str]], rows: int, connections: int, rounds: int, seconds: float) -> Figure:
    rates: list[list[float]] = [[], []]
    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for index in (0, 1) if number % 2 else (1, 0):
            port, path, key = servers[index]
            requests = [request(path, body, key=key) for body in bodies(rows)]
            taken = turn(port, requests, connections, seconds)
            if number:  # the first round warms up
                rates[index].append(len(taken) / seconds)
                times[index] += taken
    median = (statistics.median(rates[0]), statistics.median(rates[1]))
    p50, p99 = ((1000 * float(np.quantile(times[0], q)), 1000 * float(np.quantile(times[1], q))) for q in (0.5, 0.99))
    return Figure(rows, connections, median, p50, p99, middle_ratio(*rates), TARGET)


def turn(port: int, requests: list[bytes], connections: int, seconds: float) -> list[float]:
    """Send requests for some seconds; returns the duration of each."""

    def lane(number: int) -> list[float]:
        connection, taken, i = Connection(port), [], number
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            connection.send(requests[i % len(requests)])
            taken.append(time.perf_counter() - start)
            i += 1
        connection.close()
        return taken

    with ThreadPoolExecutor(connections) as pool:
        return [t for taken in pool.map(lane, range(connections)) for t in taken]


def predictions_table(figures: list[Figure]) -> Table:
    title = f"Predictions of a logistic model of {FEATURES} features: Amend | mlflow models serve"
    out = Table(title=title, title_justify="left")
    for column in ("rows per request", "connections", "requests/s", "p50 ms", "p99 ms", "ratio", "target", "met"):
        out.add_column(column, justify="right")
    for f in figures:
        pairs = [f"{a:,.0f} | {b:,.0f}" for a, b in [f.requests_per_second]]
        pairs += [f"{a:.2f} | {b:.2f}" for a, b in (f.p50, f.p99)]
        met = "yes" if f.ratio >= f.target else "NO"
        out.add_row(str(f.rows), str(f.connections), *pairs, f"{f.ratio:.1f}x", f"{f.target:.0f}x", met)
    return out
