"""Requests/s of predictions with uncertainty, compared with predictions without it, measured alternately."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.table import Table

from bench.baselines import FEATURES, Batches
from bench.contestants import vector_model
from bench.ingest import middle_ratio
from bench.predictions import bodies, record_champion, turn
from bench.wire import amend, request

TARGET = 0.5
"""Required share of the requests/s without uncertainty."""
MODELS: dict[str, dict[str, Any]] = {
    "linear": {},
    "kernel-256": {"architecture": {"kind": "kernel", "features": 256, "lengthscale": FEATURES**0.5}},
    "kernel-1024": {"architecture": {"kind": "kernel", "features": 1024, "lengthscale": FEATURES**0.5}},
    "mlp-100": {"architecture": {"kind": "mlp", "hidden": [100]}},
}


@dataclass(frozen=True)
class Figure:
    """Requests/s for one number of rows per request, with and without uncertainty."""

    model: str
    rows: int
    requests_per_second: tuple[float, float]
    ratio: float
    target: float


def uncertainty(rounds: int, seconds: float) -> Iterator[Figure]:
    """Measure each model with 1 and 100 rows per request."""
    data = Batches().one(2_000)
    noisy = (data.x[:, 0] + Batches(seed=1).one(2_000).x[:, 0] > 0).astype(np.int64)
    with TemporaryDirectory() as folder, amend(Path(folder) / "home") as service:
        for name, spec in MODELS.items():
            service.post("/v1/models", {**vector_model(name), **spec})
            record_champion(service, name, data.x, noisy)
            for rows in (1, 100):
                plain = bodies(rows)
                asked = ([body[:-1] + b',"uncertainty":true}' for body in plain], plain)
                rates: list[list[float]] = [[], []]
                for number in range(rounds + 1):
                    for index in (0, 1) if number % 2 else (1, 0):
                        path = f"/v1/models/{name}/predictions"
                        requests = [request(path, body, key=service.key) for body in asked[index]]
                        taken = turn(service.port, requests, 1, seconds)
                        if number:  # the first round warms up
                            rates[index].append(len(taken) / seconds)
                median = (statistics.median(rates[0]), statistics.median(rates[1]))
                yield Figure(name, rows, median, middle_ratio(*rates), TARGET)


def uncertainty_table(figures: list[Figure]) -> Table:
    title = f"Requests/s of a binary model with {FEATURES} features: with std and interval | without"
    out = Table(title=title, title_justify="left")
    for column in ("model", "rows a request", "requests/s", "ratio", "target", "met"):
        out.add_column(column, justify="left" if column == "model" else "right")
    for f in figures:
        both = " | ".join(f"{rate:,.0f}" for rate in f.requests_per_second)
        met = "yes" if f.ratio >= f.target else "NO"
        out.add_row(f.model, str(f.rows), both, f"{f.ratio:.2f}", f"{f.target:.1f}", met)
    return out
