"""What poison in many small batches costs before the promotion gate stops it, through REST.

Each model learns examples of a logistic rule, a tenth of which is held out, and then 40 batches of 90 examples whose
labels are all flipped. The cost is how much higher the loss of the served model becomes at worst, on 20 000 other
examples of the rule.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.gate import DIM
from bench.turnaround import MANUAL_POLICY, embedded, wait_for_job

SIZES, BATCH, BATCHES, TEST = (1_500, 4_000, 20_000), 90, 40, 20_000


class Poisoned(NamedTuple):
    """What became of a model."""

    accepted: int
    alarm: int
    """Number of the first batch with an alarm; 0 without one."""
    cost: float


def poison(client: httpx.Client, size: int, seed: int) -> Poisoned:
    rng, name = np.random.default_rng(seed), f"poisoned-{size}-{seed}"
    rule = rng.normal(size=DIM)
    path = f"/v1/models/{name}"
    body = {"name": name, "input": {"kind": "vector", "dim": DIM}, "target": {"kind": "binary"}}
    client.post("/v1/models", json={**body, "policy": MANUAL_POLICY}).raise_for_status()

    def draw(count: int) -> tuple[Any, Any]:
        x = rng.normal(size=(count, DIM))
        return x, (rng.random(count) < 1 / (1 + np.exp(-x @ rule))).astype(int)

    test, truth = draw(TEST)
    best = 0.0

    def send(day: int, count: int, flip: bool) -> int:
        x, y = draw(count)
        labels = (1 - y if flip else y).tolist()
        rows = [{"id": f"{day}-{i}", "x": x[i].tolist(), "y": labels[i]} for i in range(count)]
        client.post(f"{path}/examples", json={"examples": rows}).raise_for_status()
        return int(wait_for_job(client, client.post(f"{path}/adaptations").raise_for_status().json()["id"])["version"])

    def loss() -> float:
        found = client.post(f"{path}/predictions", json={"inputs": test.tolist()}).raise_for_status().json()["outputs"]
        p = np.array([one["mean"] for one in found])
        return float(-np.log(np.where(truth == 1, p, 1 - p)).mean())

    send(0, size, flip=False)
    clean = loss()
    accepted = 0
    for day in range(BATCHES):
        version = send(day + 1, BATCH, flip=True)
        if client.get(path).raise_for_status().json()["champion"] == version:
            accepted += 1
            best = max(best, loss() / clean - 1)
    windows = client.get(f"{path}/quality?window=job&limit=1000").raise_for_status().json()["items"]
    alarms = [number for number, window in enumerate(windows, 1) if window["alarm"]]
    return Poisoned(accepted, min(alarms, default=0), best)


def run(seeds: int) -> None:
    """Print how many poisoned batches were learnt, when an alarm was raised, and what they cost."""
    out = Table(title="Poison in small steps", title_justify="left")
    for column in ("examples", "models", "batches learnt", "first alarm", "cost (median)", "cost (worst)"):
        out.add_column(column, justify="right")
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        for size in SIZES:
            found = [poison(client, size, seed) for seed in range(seeds)]
            costs, learnt = [one.cost for one in found], [one.accepted for one in found]
            alarms = [one.alarm for one in found]
            out.add_row(
                f"{size:,}",
                str(seeds),
                f"{min(learnt)}-{max(learnt)}",
                f"{min(alarms)}-{max(alarms)}",
                f"{np.median(costs):.0%}",
                f"{max(costs):.0%}",
            )
    Console().print(out)
