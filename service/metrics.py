"""GET /metrics: the counters of this service's processes, and metrics computed from the database."""

import os
import platform
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.clock import now
from core.database import Database
from core.erasure.queries import count_erasures
from core.jobs.queries import count_jobs, count_messages_and_workers
from core.quality.drift_records import max_psi
from core.quality.forgetting import round_metrics
from core.quality.queries import newest_windows
from core.tables.erasures import ErasureState
from core.tables.jobs import JobKind, JobState
from core.versions.privacy_rounding import coarse, coarse_certificate
from core.versions.queries import models_in_service
from service.context import Context, ContextDep
from service.counters import REGISTRY
from service.http.auth import Reader
from service.http.problems import problem_responses
from service.http.routes import CheckedRoute

router = APIRouter(tags=["Operations"], route_class=CheckedRoute)

JOB_SECONDS_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper limits of the buckets of job durations."""
MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder where prometheus_client collects the counters of several processes."""


class DatabaseCollector(Collector):
    """Metrics of jobs, workers, models and erasures. They are read from the database, so that every process of the
    service reports the same values and workers need no metrics endpoint of their own.
    """

    def __init__(self, database: Database, worker_timeout: float) -> None:
        self.database = database
        self.worker_timeout = timedelta(seconds=worker_timeout)

    def collect(self) -> Iterator[Metric]:
        with self.database.read() as session:
            yield from self.jobs(session)
            yield from self.models(session)
            yield from self.erasures(session)

    def jobs(self, session: Session) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("amend_jobs", "Number of jobs by kind and state.", labels=["kind", "state"])
        waiting = GaugeMetricFamily("amend_jobs_waiting_seconds", "Age of the oldest queued job in seconds.")
        took = HistogramMetricFamily("amend_job_seconds", "Duration of succeeded jobs in seconds.", labels=["kind"])
        workers = GaugeMetricFamily("amend_workers", "Number of workers with a recent heartbeat.")
        unsent = GaugeMetricFamily("amend_outbox", "Number of messages not yet sent to the broker.")
        rows = count_jobs(session, JOB_SECONDS_BUCKETS)
        for kind in JobKind:
            for state in JobState:
                # Zero counts are reported too: a series that starts with its first failure shows no increase.
                count = sum(row.count for row in rows if (row.kind, row.state) == (kind, state))
                jobs.add_metric([kind.value, state.value], count)
            done = [row for row in rows if row.kind is kind and row.state is JobState.SUCCEEDED and row.bucket >= 0]
            below = [sum(row.count for row in done if row.bucket <= i) for i in range(len(JOB_SECONDS_BUCKETS) + 1)]
            buckets = list(zip([*map(str, JOB_SECONDS_BUCKETS), "+Inf"], below, strict=True))
            took.add_metric([kind.value], buckets, sum(row.seconds for row in done))
        oldest = min((row.oldest for row in rows if row.state is JobState.QUEUED), default=None)
        waiting.add_metric([], max(0.0, (now() - oldest).total_seconds()) if oldest else 0)
        messages, heard = count_messages_and_workers(session, now() - self.worker_timeout)
        unsent.add_metric([], messages)
        workers.add_metric([], heard)
        return jobs, waiting, took, workers, unsent

    def models(self, session: Session) -> Iterable[Metric]:
        def gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"amend_{name}", description, labels=["model", *labels])

        examples = gauge("ledger_examples", "Number of active examples.", "split")
        pending = gauge("pending_changes", "Number of ledger changes not yet reflected in the champion.")
        held = gauge("model_held", "1 if the model is held, 0 otherwise.")
        number = gauge("champion_version", "Version number of the champion.")
        age = gauge("champion_age_seconds", "Age of the champion in seconds.")
        holdout = gauge("champion_holdout", "Holdout metrics of the champion, rounded.", "metric")
        bound = gauge("champion_relative_bound", "Relative bound of the champion's certificate, rounded up.")
        within = gauge("champion_within_tolerance", "1 if that bound is within the policy's tolerance, 0 otherwise.")
        agreed = gauge("comparison_within_tolerance", "1 if the last retrain agreed with the adapted model.")
        quarantined = gauge("quarantined_examples", "Number of examples in quarantine.")
        unseen = gauge("test_then_train", "Rounded metrics of the last window of new examples.", "contestant", "metric")
        alarm = gauge("batch_alarm", "1 if the last window of new examples raised an alarm, 0 otherwise.")
        psi = gauge("drift_max_psi", "Largest population stability index of a column, rounded.")
        drifting = gauge("drifted_columns", "Number of columns that have drifted since the last full training.")
        shifted = gauge("predictions_drifted", "1 if the champion's predictions have drifted, 0 otherwise.")
        windows = newest_windows(session)
        for model in models_in_service(session):
            quarantined.add_metric([model.name], model.quarantined_count)
            if (drift := model.drift) is not None:
                drifting.add_metric([model.name], len(drift.drifted["columns"]))
                shifted.add_metric([model.name], drift.drifted["predictions"])
                if drift.report is not None:
                    psi.add_metric([model.name], max_psi(drift.report))
            if (window := windows.get(model.id)) is not None:
                alarm.add_metric([model.name], window.alarm)
                for contestant, values in window.metrics.items():
                    for name, value in round_metrics(values, window.rows).items():
                        if not name.endswith("_se"):
                            unseen.add_metric([model.name, contestant, name], value)
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
            # Rounded, because Prometheus keeps old values: exact metrics before and after the removal of one holdout
            # row would reveal that row.
            for name, value in coarse(champion.metrics).items():
                if not name.endswith("_se"):
                    holdout.add_metric([model.name, name], value)
            exact, rounded = champion.certificate, coarse_certificate(champion.certificate)
            if exact and rounded and exact.relative is not None and rounded.relative is not None:
                bound.add_metric([model.name], rounded.relative)
                within.add_metric([model.name], exact.relative <= model.tolerance)
        quality = (quarantined, unseen, alarm, psi, drifting, shifted)
        return examples, pending, held, number, age, holdout, bound, within, agreed, *quality

    def erasures(self, session: Session) -> Iterable[Metric]:
        erasures = GaugeMetricFamily("amend_erasures", "Number of erasure requests by state.", labels=["state"])
        overdue = GaugeMetricFamily("amend_erasures_overdue", "Number of erasure requests past their due date.")
        counts = {state: (count, late) for state, count, late in count_erasures(session)}
        for state in ErasureState:
            erasures.add_metric([state.value], counts.get(state, (0, 0))[0])
        overdue.add_metric([], sum(late for _, late in counts.values()))
        return erasures, overdue


class ProcessesCollector(Collector):
    """CPU, memory and open files summed over the processes of this service, and the versions that they run."""

    def collect(self) -> Iterator[Metric]:
        runs = {"version": version("amend"), "python": platform.python_version(), "torch": version("torch")}
        build = GaugeMetricFamily("amend_build_info", "Versions in use, as labels; always 1.", labels=list(runs))
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
        """Process ids, taken from the names of the counter files. A process that has ended contributes nothing."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return ["self"]
        return sorted(
            {int(file.stem.rpartition("_")[2]) for file in Path(os.environ[MULTIPROCESS_FOLDER]).glob("*.db")}
        )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"},
        **problem_responses(),
    },
)
def show_metrics(caller: Reader, context: ContextDep) -> Response:
    """Get all metrics in the Prometheus text format."""
    caller.require_all_models()
    return Response(render_metrics(context), media_type="text/plain; version=0.0.4; charset=utf-8")


def render_metrics(context: Context) -> bytes:
    """All metrics as text. Those from the database are cached, so that frequent scrapes cost few queries."""
    from_database = context.database_metrics.get("")
    if from_database is None:
        asked = time.monotonic()
        from_database = text_of(DatabaseCollector(context.database, context.settings.worker_timeout))
        context.database_metrics.put("", from_database, asked)
    return render_counters() + text_of(ProcessesCollector()) + from_database


def render_counters() -> bytes:
    """The counters of this process, or their sums over all processes."""
    if MULTIPROCESS_FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def text_of(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
