"""Cost and benefit of Ray: one pass over all examples, in one process and as tasks of a local cluster."""

from __future__ import annotations

import json as json_module
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from bench.turnaround import DIM, MANUAL_POLICY, create_filled_model
from core.kprior.model.predictor import Predictor
from core.kprior.passes.loss import Loss
from core.ledger import passes
from core.models import catalog
from core.tables.jobs import JobKind
from tests import servers
from tests.endurance.ray_cluster import RayCluster
from tests.stack import Stack
from worker.context import Context
from worker.example_reading import Reading
from worker.executors.base import Executor, InProcess
from worker.job_attempt import JobAttempt

ALLOWED = 1.1
"""Largest accepted ratio of the CPU seconds of a single task to those of one process."""


@dataclass(frozen=True)
class Seconds:
    """Duration of a pass for the loss, its gradient and its Hessian, with one thread per process."""

    wall: float
    cpu: float
    """CPU seconds of the worker and its tasks, without the database."""


@dataclass(frozen=True)
class Comparison:
    """Medians of passes in the worker's process and on Ray, which alternate so that noise affects both equally."""

    rows: int
    tasks: int
    """Number of concurrent tasks."""
    first: float
    """Seconds of the first pass on Ray, which waits for processes to load torch."""
    in_process: Seconds
    on_ray: Seconds


class Bench:
    """One model on one database."""

    def __init__(self, stack: Stack, name: str, rows: int, repeats: int) -> None:
        self.stack, self.rows, self.repeats = stack, rows, repeats
        self.context = Context(stack.settings, None)
        with stack.database.read() as session:
            model = catalog.find(session, name, None)
        self.model_id, self.spec, self.head = model.id, model.spec, model.head

    def compare(self, executor: Executor, tasks: int, processes: Callable[[], list[int]]) -> Comparison:
        """Make several passes of each kind, after a warm-up."""
        passes = [
            (self.run_pass(InProcess(), lambda: []), self.run_pass(executor, processes))
            for _ in range(1 + self.repeats)
        ]
        in_process, on_ray = (median(each) for each in zip(*passes[1:], strict=True))
        return Comparison(self.rows, tasks, passes[0][1].wall, in_process, on_ray)

    def run_pass(self, executor: Executor, processes: Callable[[], list[int]]) -> Seconds:
        self.context.executor = executor
        attempt = JobAttempt(
            context=self.context,
            job_id="",
            owner="",
            kind=JobKind.ADAPT,
            number=1,
            model_id=self.model_id,
            model="",
            request_id=None,
            traceparent=None,
            run=lambda context, job_id: None,
        )
        data = passes.read_in_force(self.stack.database, self.model_id, self.spec, self.head)
        reading = Reading(attempt, data, attempt.progress, "")
        predictor = Predictor(self.spec)
        before = time.process_time() + sum(map(cpu_seconds, processes())), time.perf_counter()
        reading.accumulate(Loss(predictor, predictor.initial_weights(), with_hessian=True))
        after = time.process_time() + sum(map(cpu_seconds, processes())), time.perf_counter()
        return Seconds(after[1] - before[1], after[0] - before[0])


def median(passes: Sequence[Seconds]) -> Seconds:
    return Seconds(*(statistics.median(each) for each in zip(*map(astuple, passes), strict=True)))


def cpu_seconds(process: int) -> float:
    try:
        user, system = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    except FileNotFoundError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def run(rows: list[int], tasks: int, repeats: int, json: Path | None) -> None:
    """Run on PostgreSQL, with all parts on this machine."""
    console, found = Console(), []
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, servers.postgres() as postgres:
        address = {"AMEND_RAY_ADDRESS": "127.0.0.1:1", "AMEND_RAY_MIN_SECONDS": "0"}
        stack = Stack(Path(folder), postgres.create_database("sharing"), **address)
        cluster: RayCluster | None = None
        try:
            stack.start()
            with stack.client() as client:
                benches = [prepare(stack, client, count, repeats, console) for count in rows]
            cluster = RayCluster(stack.environment, nodes=1)
            os.environ.update(cluster.token)
            from worker.executors.ray_executor import OnRay

            settings = stack.settings.model_copy(update={"ray_address": cluster.address})
            for number in range(1, tasks + 1):
                if number > 1:
                    cluster.add_node()
                for bench in benches:
                    executor = OnRay(settings, stack.database, torch.device("cpu"))
                    found.append(bench.compare(executor, number, cluster.workers))
                    executor.close()
        finally:
            if cluster is not None:
                cluster.stop()
            stack.stop()
    show(found, console)
    if json is not None:
        json.write_text(json_module.dumps([asdict(each) for each in found]))


def prepare(stack: Stack, client: httpx.Client, rows: int, repeats: int, console: Console) -> Bench:
    console.print(f"{rows:,} examples ...")
    create_filled_model(client, f"rows-{rows}", rows, policy=MANUAL_POLICY)
    return Bench(stack, f"rows-{rows}", rows, repeats)


def show(found: list[Comparison], console: Console) -> None:
    table = Table(title=f"One pass, P = {DIM + 1}: seconds in process and on Ray", title_justify="left", box=box.SIMPLE)
    for column in ("examples", "tasks", "first", "wall", "Ray", "ratio", "CPU", "Ray", "ratio", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for each in sorted(found, key=lambda one: (one.rows, one.tasks)):
        times: list[float] = [each.first]
        for alone, shared in zip(astuple(each.in_process), astuple(each.on_ray), strict=True):
            times += [alone, shared, shared / alone]
        verdict = "" if each.tasks > 1 else "met" if times[-1] <= ALLOWED else "missed"
        table.add_row(f"{each.rows:,}", str(each.tasks), *(f"{time:.2f}" for time in times), verdict)
    console.print(table)
