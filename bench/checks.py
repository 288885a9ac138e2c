"""What the checks of model quality cost: removals and additions with a worker that makes them, and with one that does
not, in turn, so that whatever else the machine does slows both.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from bench.turnaround import DIM, MANUAL_POLICY, create_filled_model, embedded, wait_for_job
from tests.stack import Stack

BATCH = 100
"""Examples of an addition."""
LIMIT = 1.2
"""The checks may add a fifth to the turnaround."""


@dataclass
class Side:
    """A deployment, and what its jobs took: seconds from the response to the served champion, and seconds of CPU of
    the workers."""

    client: httpx.Client
    stack: Stack
    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"removal": [], "addition": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"removal": [], "addition": []})

    def measure(self, what: str, number: int, rng: np.random.Generator) -> None:
        before = self.spent()
        if what == "removal":
            body: dict[str, Any] = {"ids": [f"e{7 * number}"]}
            job = self.client.post(f"/v1/models/{self.name}/removals", json=body).raise_for_status().json()["job"]
        else:
            x = rng.normal(size=(BATCH, DIM))
            rows = [{"id": f"n{number}-{i}", "x": row.tolist(), "y": int(row[0] > 0)} for i, row in enumerate(x)]
            added = self.client.post(f"/v1/models/{self.name}/examples", json={"examples": rows})
            added.raise_for_status()
            job = self.client.post(f"/v1/models/{self.name}/adaptations").raise_for_status().json()["id"]
        start = time.perf_counter()
        while self.client.get(f"/v1/models/{self.name}").json()["pending"]:
            time.sleep(0.002)
        self.seconds[what].append(time.perf_counter() - start)
        wait_for_job(self.client, job)
        self.cpu[what].append(self.spent() - before)

    def spent(self) -> float:
        """Seconds of CPU of all workers, except those that publish to MLflow."""
        total = 0.0
        for process in self.stack.others:
            for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                times = one.cpu_times()
                total += times.user + times.system
        return total


def run(rows: list[int], count: int) -> None:
    """Print the median turnaround with and without the checks."""
    console, rng = Console(), np.random.default_rng(1)
    out = Table(title="Turnaround with the checks of model quality, and without them", title_justify="left")
    for column in ("examples", "change", "without", "with", "ratio", "CPU without", "CPU with", "ratio"):
        out.add_column(column, justify="right")
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        pair = embedded(Path(one), "bench.unchecked_worker"), embedded(Path(other))
        with pair[0] as bare, pair[1] as full, bare.client() as left, full.client() as right:
            for each in rows:
                sides = [Side(client, stack, f"m{each}") for client, stack in ((left, bare), (right, full))]
                for side in sides:
                    create_filled_model(side.client, side.name, each, policy=MANUAL_POLICY)
                    first = side.client.post(f"/v1/models/{side.name}/adaptations").raise_for_status().json()["id"]
                    wait_for_job(side.client, first)
                for number in range(count + 1):
                    for what in ("removal", "addition"):
                        for side in sides:
                            side.measure(what, number, rng)
                for what in ("removal", "addition"):
                    # the first of each kind warms up
                    times = [statistics.median(side.seconds[what][1:]) for side in sides]
                    cpu = [statistics.median(side.cpu[what][1:]) for side in sides]
                    shown = [f"{f'{value:.3f}'}" for value in (*times, times[1] / times[0], *cpu, cpu[1] / cpu[0])]
                    out.add_row(f"{each:,}", what, *shown)
                    met = "met" if times[1] <= LIMIT * times[0] else "NOT met"
                    console.print(f"{each:,} examples, {what}: ratio {times[1] / times[0]:.2f} (target {LIMIT}: {met})")
    console.print(out)
