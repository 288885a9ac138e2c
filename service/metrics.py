"""What Prometheus can ask for: counts of this service's processes, and figures that the database knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from core.database import Database, now
from core.erasure.queries import count_erasures, count_overdue
from core.jobs import queries
from core.versions.queries import positions_in_service

OURS = CollectorRegistry()
REQUESTS = Counter("amend_requests", "Requests by route and status.", ["method", "route", "status"], registry=OURS)
SECONDS = Histogram(
    "amend_request_seconds",
    "Seconds a request took.",
    ["method", "route"],
    registry=OURS,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
EXAMPLES = Counter("amend_examples", "Examples by what became of them.", ["outcome"], registry=OURS)
PREDICTIONS = Counter("amend_predictions", "Predictions made.", registry=OURS)
UNSEEN = Counter(
    "amend_unseen_categories", "Values of category columns that were taken as other.", ["model"], registry=OURS
)


@lru_cache(maxsize=1000)
def of_route(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, str(status)), SECONDS.labels(method, route)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    requests, durations = of_route(method, route, status)
    requests.inc()
    durations.observe(seconds)


def count_unseen(model: str, count: int) -> None:
    if count:
        UNSEEN.labels(model).inc(count)


class Ledger(Collector):
    """Figures that are the same whichever process is asked."""

    def __init__(self, database: Database, silence: float) -> None:
        self.database = database
        self.silence = timedelta(seconds=silence)
        """A worker that was silent for longer is down."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("amend_jobs", "Jobs by kind and state.", labels=["kind", "state"])
        waiting = GaugeMetricFamily("amend_jobs_waiting_seconds", "For how long the oldest queued job has waited.")
        workers = GaugeMetricFamily("amend_workers", "Workers that were heard of lately.")
        unsent = GaugeMetricFamily("amend_outbox", "Messages to the workers that are not sent yet.")
        examples = GaugeMetricFamily("amend_ledger_examples", "Examples in force.", labels=["model", "split"])
        pending = GaugeMetricFamily("amend_pending_changes", "Changes after the champion.", labels=["model"])
        held = GaugeMetricFamily("amend_model_held", "1 while a model is held, 0 otherwise.", labels=["model"])
        erasures = GaugeMetricFamily("amend_erasures", "Erasures by state.", labels=["state"])
        overdue = GaugeMetricFamily("amend_erasures_overdue", "Erasures past their due date.")
        with self.database.read() as session:
            for kind, state, count in queries.count_jobs(session):
                jobs.add_metric([kind.value, state.value], count)
            oldest = queries.oldest_queued(session)
            waiting.add_metric([], max(0.0, (now() - oldest).total_seconds()) if oldest else 0)
            workers.add_metric([], queries.count_workers(session, now() - self.silence))
            unsent.add_metric([], queries.count_unsent(session))
            for model, position in positions_in_service(session):
                examples.add_metric([model.name, "train"], model.train_count)
                examples.add_metric([model.name, "holdout"], model.holdout_count)
                pending.add_metric([model.name], model.head - (position or 0))
                held.add_metric([model.name], model.held_at is not None)
            for stage, count in count_erasures(session):
                erasures.add_metric([stage.value], count)
            overdue.add_metric([], count_overdue(session))
        yield from (jobs, waiting, workers, unsent, examples, pending, held, erasures, overdue)


def page(database: Database, silence: float) -> bytes:
    """All figures in Prometheus' text format. With several processes their counts are added up."""
    registry = CollectorRegistry()
    registry.register(Ledger(database, silence))
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest(OURS) + generate_latest(registry)
