"""From an erasure request to its receipt, on the embedded default: one at a time, and a hundred at once."""

from __future__ import annotations

import json as json_module
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from rich.console import Console
from rich.table import Table

from bench.turnaround import DIM, MANUAL_POLICY, create_filled_model, embedded, wait_for_job

ONE_PERSON_SECONDS, CROWD_SECONDS = 6.0, 20.0
CROWD_SIZE = 100
EXAMPLES_PER_PERSON = 3
"""Number of examples about each person."""


def wait_for_erasures(client: httpx.Client, ids: list[str]) -> None:
    for id_ in ids:
        while (erasure := client.get(f"/v1/erasures/{id_}").json())["state"] != "completed":
            assert erasure["state"] != "failed", erasure
            time.sleep(0.01)
        client.get(erasure["receipt"]).raise_for_status()


def request_erasure(client: httpx.Client, person: int) -> str:
    answer = client.post("/v1/erasures", json={"subject": f"s{person}"}).raise_for_status()
    return str(answer.json()["id"])


def run(rows: int, count: int, json: Path | None) -> None:
    """Everything embedded: SQLite, Valkey from a wheel, one worker."""
    console = Console()
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        console.print(f"{rows:,} examples ...")
        create_filled_model(client, "people", rows, each=EXAMPLES_PER_PERSON, policy=MANUAL_POLICY)
        wait_for_job(client, client.post("/v1/models/people/adaptations").raise_for_status().json()["id"])
        singles = []
        for person in range(count):
            start = time.perf_counter()
            wait_for_erasures(client, [request_erasure(client, person)])
            singles.append(time.perf_counter() - start)
        start = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda person: request_erasure(client, person), range(count, count + CROWD_SIZE)))
        wait_for_erasures(client, ids)
        crowd = time.perf_counter() - start
        assert client.get("/v1/receipts/verify").json()["valid"]
    out = Table(
        title=f"From the request to the receipt: GLM, P = {DIM + 1}, N = {rows:,}, seconds", title_justify="left"
    )
    for column in ("", "seconds", "target", "met"):
        out.add_column(column, justify="left" if not column else "right")
    middle = statistics.median(singles)
    out.add_row(
        f"one (median of {count}, worst {max(singles):.2f})",
        f"{middle:.2f}",
        f"{ONE_PERSON_SECONDS:g}",
        format_met(middle < ONE_PERSON_SECONDS),
    )
    out.add_row(f"{CROWD_SIZE} at once", f"{crowd:.2f}", f"{CROWD_SECONDS:g}", format_met(crowd < CROWD_SECONDS))
    console.print(out)
    if json is not None:
        json.write_text(json_module.dumps({"one": singles, "crowd": crowd}))


def format_met(met: bool) -> str:
    return "yes" if met else "NO"
