"""How often the promotion gate rejects batches in which nothing is wrong, through REST, on SQLite and on PostgreSQL.

Each model learns 2 000 examples and then batches from the same distribution. The models differ in their targets, and
half of the batches are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.turnaround import MANUAL_POLICY, embedded, wait_for_job
from tests import servers

Numbers = NDArray[Any]
DIM, FIRST, SIZES = 8, 2_000, (100, 400)
ALLOWED = 200
"""The gate may reject one in so many batches."""
CLASSES = ["a", "b", "c"]


@dataclass(frozen=True)
class World:
    """Examples of a linear model: (n, K) outputs from (n, DIM) inputs, and y from the outputs."""

    target: dict[str, Any]
    outputs: int
    draw: Callable[[np.random.Generator, Numbers], list[Any]]
    metric: str = "loss"


def draw_classes(rng: np.random.Generator, f: Numbers) -> list[Any]:
    return [CLASSES[i] for i in (f + rng.gumbel(size=f.shape)).argmax(1)]


def draw_binary(rng: np.random.Generator, f: Numbers) -> list[Any]:
    return list((rng.random(len(f)) < 1 / (1 + np.exp(-f[:, 0]))).astype(int).tolist())


BINARY = {"kind": "binary"}
WORLDS = {
    "binary": World(BINARY, 1, draw_binary),
    "binary, AUC": World(BINARY, 1, draw_binary, "auc"),
    "rare class": World(BINARY, 1, lambda rng, f: draw_binary(rng, f - 4)),
    "rare class, average precision": World(BINARY, 1, lambda rng, f: draw_binary(rng, f - 4), "average_precision"),
    "classes": World({"kind": "classes", "values": CLASSES}, len(CLASSES), draw_classes),
    "number": World({"kind": "number"}, 1, lambda rng, f: (f[:, 0] + rng.normal(size=len(f))).tolist()),
    "heavy-tailed number": World({"kind": "number"}, 1, lambda rng, f: (f[:, 0] + rng.standard_t(3, len(f))).tolist()),
    "count": World({"kind": "count"}, 1, lambda rng, f: rng.poisson(np.exp(f[:, 0] / 2)).tolist()),
}


@dataclass(frozen=True)
class Outcome:
    """What became of ordinary batches."""

    batches: int = 0
    rejected: int = 0
    alarms: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.batches + other.batches, self.rejected + other.rejected, self.alarms + other.alarms)


def live_through(client: httpx.Client, kind: str, seed: int, batches: int) -> Outcome:
    """Send ordinary batches to a new model, and count those that were rejected or raised an alarm."""
    world, rng, name = (
        WORLDS[kind],
        np.random.default_rng(seed),
        f"{kind.replace(' ', '-').replace(',', '').lower()}-{seed}",
    )
    rule = rng.normal(size=(DIM, world.outputs)) / 2
    policy = {**MANUAL_POLICY, "gate": {"metric": world.metric}}
    body = {"name": name, "input": {"kind": "vector", "dim": DIM}, "target": world.target, "policy": policy}
    client.post("/v1/models", json=body).raise_for_status()

    def send(day: int, count: int) -> int:
        x = rng.normal(size=(count, DIM))
        y = world.draw(rng, x @ rule)
        rows = [{"id": f"{day}-{i}", "x": x[i].tolist(), "y": y[i]} for i in range(count)]
        client.post(f"/v1/models/{name}/examples", json={"examples": rows}).raise_for_status()
        job = client.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"]
        return int(wait_for_job(client, job)["version"])

    send(0, FIRST)
    versions = [send(day + 1, SIZES[day % len(SIZES)]) for day in range(batches)]
    listed = client.get(f"/v1/models/{name}/versions?limit=1000").raise_for_status().json()["items"]
    states = {version["version"]: version["state"] for version in listed}
    windows = client.get(f"/v1/models/{name}/quality?window=job").raise_for_status().json()["items"]
    rejected = sum(states[version] == "rejected" for version in versions)
    return Outcome(batches, rejected, sum(window["alarm"] for window in windows))


@contextmanager
def database_urls() -> Iterator[dict[str, str]]:
    with servers.postgres() as server:
        yield {"SQLite": "", "PostgreSQL": server.create_database("amend_bench_gate")}


def run(batches: int, seeds: int, only: str) -> None:
    """Print how many ordinary batches were rejected, by kind of model and database."""
    console = Console()
    out = Table(title="Ordinary batches", title_justify="left")
    for column in ("database", "model", "batches", "rejected", "alarms"):
        out.add_column(column, justify="left" if column in ("database", "model") else "right")
    total = Outcome()
    with database_urls() as urls:
        for database in [name for name in urls if name.lower() in (only.lower() or name.lower())]:
            for kind, found in run_on(urls[database], batches, seeds):
                out.add_row(database, kind, *map(str, vars(found).values()))
                console.print(f"{database}, {kind}: {found.rejected} of {found.batches} rejected")
                total += found
    console.print(out)
    met = "met" if total.rejected <= max(1, total.batches // ALLOWED) else "NOT met"
    console.print(f"{total.rejected} of {total.batches} rejected (target: at most one in {ALLOWED}: {met})")


def run_on(url: str, batches: int, seeds: int) -> Iterator[tuple[str, Outcome]]:
    """What became of the models on one database, by kind."""
    with TemporaryDirectory() as folder, embedded(Path(folder), database_url=url) as stack, stack.client() as client:
        for kind in WORLDS:
            yield kind, sum((live_through(client, kind, seed, batches) for seed in range(seeds)), Outcome())
