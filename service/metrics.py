"""What Prometheus can ask for: counts of this service's processes, and figures that the database knows."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from core.database import Database, now
from core.erasure.queries import count_erasures
from core.jobs.queries import count_jobs, count_messages_and_workers
from core.tables.erasures import ErasureState
from core.tables.jobs import JobKind, JobState
from core.versions.privacy_rounding import coarse, coarse_certificate
from core.versions.queries import models_in_service
from service.context import Context

REGISTRY = CollectorRegistry()
REQUESTS = Counter("amend_requests", "Requests by route and status.", ["method", "route", "status"], registry=REGISTRY)
REQUEST_SECONDS = Histogram(
    "amend_request_seconds",
    "Seconds a request took.",
    ["method", "route"],
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
EXAMPLES = Counter("amend_examples", "Examples by what became of them.", ["outcome"], registry=REGISTRY)
PREDICTIONS = Counter("amend_predictions", "Predictions made.", registry=REGISTRY)
UNSEEN_CATEGORIES = Counter(
    "amend_unseen_categories", "Values of category columns that were taken as other.", ["model"], registry=REGISTRY
)
JOB_SECONDS_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper limits of the buckets of jobs' durations."""
MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client finds the counts of all processes of this service, if there are several."""


@lru_cache(maxsize=1000)
def of_route(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, str(status)), REQUEST_SECONDS.labels(method, route)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    requests, durations = of_route(method, route, status)
    requests.inc()
    durations.observe(seconds)


def count_unseen(model: str, count: int) -> None:
    if count:
        UNSEEN_CATEGORIES.labels(model).inc(count)


class DatabaseCollector(Collector):
    """Figures that are the same whichever process is asked: of jobs and models, and of workers, too, which need no page
    of their own."""

    def __init__(self, database: Database, silence: float) -> None:
        self.database = database
        self.silence = timedelta(seconds=silence)
        """A worker that was silent for longer is down."""

    def collect(self) -> Iterator[Metric]:
        with self.database.read() as session:
            yield from self.jobs(session)
            yield from self.models(session)
            yield from self.erasures(session)

    def jobs(self, session: Session) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("amend_jobs", "Jobs by kind and state.", labels=["kind", "state"])
        waiting = GaugeMetricFamily("amend_jobs_waiting_seconds", "For how long the oldest queued job has waited.")
        took = HistogramMetricFamily("amend_job_seconds", "Seconds that jobs took which succeeded.", labels=["kind"])
        workers = GaugeMetricFamily("amend_workers", "Workers that were heard of lately.")
        unsent = GaugeMetricFamily("amend_outbox", "Messages to the workers that are not sent yet.")
        found = count_jobs(session, JOB_SECONDS_BUCKETS)
        for kind in JobKind:
            for state in JobState:
                # also where there are none: of a series that begins with its first failure, nothing has grown
                count = sum(row.count for row in found if (row.kind, row.state) == (kind, state))
                jobs.add_metric([kind.value, state.value], count)
            done = [row for row in found if row.kind is kind and row.state is JobState.SUCCEEDED and row.bucket >= 0]
            below = [sum(row.count for row in done if row.bucket <= i) for i in range(len(JOB_SECONDS_BUCKETS) + 1)]
            buckets = list(zip([*map(str, JOB_SECONDS_BUCKETS), "+Inf"], below, strict=True))
            took.add_metric([kind.value], buckets, sum(row.seconds for row in done))
        oldest = min((row.oldest for row in found if row.state is JobState.QUEUED), default=None)
        waiting.add_metric([], max(0.0, (now() - oldest).total_seconds()) if oldest else 0)
        messages, heard = count_messages_and_workers(session, now() - self.silence)
        unsent.add_metric([], messages)
        workers.add_metric([], heard)
        return jobs, waiting, took, workers, unsent

    def models(self, session: Session) -> Iterable[Metric]:
        def gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"amend_{name}", description, labels=["model", *labels])

        examples = gauge("ledger_examples", "Examples in force.", "split")
        pending = gauge("pending_changes", "Changes after the champion.")
        held = gauge("model_held", "1 while a model is held, 0 otherwise.")
        number = gauge("champion_version", "The number of the version that answers predictions.")
        age = gauge("champion_age_seconds", "Seconds since the champion was made.")
        holdout = gauge("champion_holdout", "The champion's figures on the holdout, rounded.", "figure")
        bound = gauge("champion_relative_bound", "How far the champion can be from a retrain, rounded up.")
        within = gauge("champion_within_tolerance", "1 if that is within the policy's tolerance, 0 otherwise.")
        agreed = gauge("comparison_within_tolerance", "1 if the last retrain agreed with the adapted model, else 0.")
        for model in models_in_service(session):
            examples.add_metric([model.name, "train"], model.train_count)
            examples.add_metric([model.name, "holdout"], model.holdout_count)
            held.add_metric([model.name], model.held_at is not None)
            champion = model.champion
            pending.add_metric([model.name], model.head - (champion.position if champion else 0))
            if model.within_tolerance is not None:
                agreed.add_metric([model.name], model.within_tolerance)
            if champion is None:
                continue
            number.add_metric([model.name], champion.number)
            age.add_metric([model.name], (now() - champion.created_at).total_seconds())
            # rounded: Prometheus keeps what it saw, and two holdouts that differ in a row tell that row
            for name, value in coarse(champion.metrics).items():
                if not name.endswith("_se"):
                    holdout.add_metric([model.name, name], value)
            exact, told = (champion.certificate or {}).get("relative"), coarse_certificate(champion.certificate)
            if exact is not None and (relative := told.get("relative")) is not None:
                bound.add_metric([model.name], relative)
                within.add_metric([model.name], exact <= model.tolerance)
        return examples, pending, held, number, age, holdout, bound, within, agreed

    def erasures(self, session: Session) -> Iterable[Metric]:
        erasures = GaugeMetricFamily("amend_erasures", "Erasures by state.", labels=["state"])
        overdue = GaugeMetricFamily("amend_erasures_overdue", "Erasures past their due date.")
        found = {state: (count, late) for state, count, late in count_erasures(session)}
        for state in ErasureState:
            erasures.add_metric([state.value], found.get(state, (0, 0))[0])
        overdue.add_metric([], sum(late for _, late in found.values()))
        return erasures, overdue


class Processes(Collector):
    """What the system knows of this service's processes, added up, and what they run."""

    def collect(self) -> Iterator[Metric]:
        runs = {"version": version("amend"), "python": platform.python_version(), "torch": version("torch")}
        build = GaugeMetricFamily("amend_build_info", "What runs here: always 1.", labels=list(runs))
        build.add_metric(list(runs.values()), 1)
        yield build
        added: dict[str, Metric] = {}
        for process in self.processes():
            for family in ProcessCollector(pid=partial(str, process), registry=None).collect():
                known = added.setdefault(family.name, family)
                if known is not family:
                    one, other = known.samples[0], family.samples[0]
                    value = min(one.value, other.value) if "start_time" in one.name else one.value + other.value
                    known.samples[0] = one._replace(value=value)
        yield from added.values()

    def processes(self) -> Iterable[int | str]:
        """The numbers of the processes: files are named after them. Of one that has ended nothing is found."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return ["self"]
        return sorted(
            {int(file.stem.rpartition("_")[2]) for file in Path(os.environ[MULTIPROCESS_FOLDER]).glob("*.db")}
        )


def page(context: Context) -> bytes:
    """All figures in Prometheus' text format. The database is asked once in a while, however many ask for them."""
    figures = context.figures.get("database")
    if figures is None:
        asked = time.monotonic()
        figures = text_of(DatabaseCollector(context.database, context.settings.worker_silence))
        context.figures.put("database", figures, asked)
    return counts() + text_of(Processes()) + figures


def counts() -> bytes:
    """The counts of this process; of several, their sums."""
    if MULTIPROCESS_FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def text_of(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
