"""From an erasure request to its receipt under `amend up`, MLflow included: one at a time, and a hundred at once; next
to a full retrain of the same model.
"""

from __future__ import annotations

import json as json_module
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from amend.demo.stack import Stack
from bench.turnaround import DIM, MANUAL_POLICY, create_filled_model, wait_for_job

TARGETS = {100_000: (3.0, 15.0), 1_000_000: (15.0, None)}
"""By number of examples: the most seconds that one erasure may take, and a hundred at once."""
CROWD_SIZE = 100
EXAMPLES_PER_PERSON = 3
"""Number of examples about each person."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Times:
    """Wall-clock and processor time in seconds. Processor time includes all processes of `amend up`."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Measured:
    """What was measured on one model."""

    rows: int
    retrain: Times
    singles: list[Times]
    crowd: Times


def cpu_seconds(root: int) -> float:
    """Processor time of a process and its descendants, with that of their children that have ended."""
    parents, seconds = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(file.parent.name)
        parents[process], seconds[process] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    family = {root}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds.get(process, 0.0) for process in family)


def measure(stack: Stack, client: httpx.Client, work: Callable[[], object]) -> Times:
    """Measure work that begins when the installation is idle: what was done before is in MLflow."""
    assert stack.process is not None
    while re.search(r"^amend_mlflow_backlog 0(\.0)?$", client.get("/metrics").text, re.MULTILINE) is None:
        time.sleep(0.5)
    start, before = time.perf_counter(), cpu_seconds(stack.process.pid)
    work()
    return Times(time.perf_counter() - start, cpu_seconds(stack.process.pid) - before)


def wait_for_erasures(client: httpx.Client, ids: list[str]) -> None:
    for id_ in ids:
        while (erasure := client.get(f"/v1/erasures/{id_}").json())["state"] != "completed":
            assert erasure["state"] != "failed", erasure
            time.sleep(0.02)
        client.get(erasure["receipt"]).raise_for_status()


def request_erasure(client: httpx.Client, person: int) -> str:
    answer = client.post("/v1/erasures", json={"subject": f"s{person}"}).raise_for_status()
    return str(answer.json()["id"])


def erase_crowd(client: httpx.Client, people: range) -> None:
    with ThreadPoolExecutor(8) as pool:
        wait_for_erasures(client, list(pool.map(lambda person: request_erasure(client, person), people)))


@contextmanager
def started() -> Iterator[tuple[Stack, httpx.Client]]:
    with Stack() as stack:
        stack.wait_until_ready(lambda _share, _phrase: None)
        headers = {"Authorization": f"Bearer {stack.key}"}
        with httpx.Client(base_url=stack.url, headers=headers, timeout=600, verify=False) as client:
            yield stack, client


def measure_model(rows: int, count: int) -> Measured:
    """Fill a model of a fresh installation, retrain it, and erase people from it."""
    with started() as (stack, client):
        create_filled_model(client, "people", rows, each=EXAMPLES_PER_PERSON, policy=MANUAL_POLICY)
        wait_for_job(client, client.post("/v1/models/people/adaptations").raise_for_status().json()["id"])

        def retrain() -> None:
            wait_for_job(client, client.post("/v1/models/people/retrains").raise_for_status().json()["id"])

        retrained = measure(stack, client, retrain)

        def erase_next() -> None:
            wait_for_erasures(client, [request_erasure(client, next(people))])

        people = iter(range(count))
        singles = [measure(stack, client, erase_next) for _ in range(count)]
        crowd = measure(stack, client, lambda: erase_crowd(client, range(count, count + CROWD_SIZE)))
        assert client.get("/v1/receipts/verify").json()["valid"]
    return Measured(rows, retrained, singles, crowd)


def add_rows(out: Table, found: Measured) -> None:
    one_target, crowd_target = TARGETS.get(found.rows, (None, None))
    middle = sorted(found.singles, key=lambda times: times.wall)[len(found.singles) // 2]
    worst = max(times.wall for times in found.singles)
    lines = [
        ("retrain", found.retrain, None),
        (f"one erasure (median of {len(found.singles)}, worst {worst:.2f})", middle, one_target),
        (f"{CROWD_SIZE} erasures at once", found.crowd, crowd_target),
    ]
    for words, times, target in lines:
        met = "" if target is None else f"{target:g}: {'met' if times.wall < target else 'NOT met'}"
        ratio = f"{times.wall / found.retrain.wall:.2f}"
        out.add_row(f"{found.rows:,}", words, f"{times.wall:.2f}", f"{times.cpu:.2f}", ratio, met)


def run(rows: list[int], count: int, json: Path | None) -> None:
    """Everything as `amend up` starts it: SQLite, Valkey from a wheel, MLflow, one worker."""
    console = Console()
    out = Table(title=f"From the request to the receipt: GLM, P = {DIM + 1}", title_justify="left")
    for column in ("examples", "", "seconds", "CPU s", "of a retrain", "target"):
        out.add_column(column, justify="left" if not column else "right")
    results = []
    for size in rows:
        console.print(f"{size:,} examples ...")
        results.append(measure_model(size, count))
        add_rows(out, results[-1])
    console.print(out)
    if json is not None:
        summary = [asdict(found) | {"median": statistics.median(t.wall for t in found.singles)} for found in results]
        json.write_text(json_module.dumps(summary))
