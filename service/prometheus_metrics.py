"""GET /metrics: the counters of this service's processes, and metrics computed from the database."""

import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
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
from core.database import Database, measure_size
from core.erasure.queries import count_erasures, measure_open
from core.errors import Unavailable
from core.jobs.queries import JobCount, count_jobs, count_messages_and_workers
from core.jobs.queue import QUEUES
from core.metadata import last_tick
from core.promotion.failed_versions import failed_in_service
from core.quality.drift_records import max_psi
from core.quality.erased_records import round_metrics
from core.quality.queries import newest_windows
from core.register.signed_tree import newest_head
from core.settings import Settings
from core.tables.erasures import ErasureState
from core.tables.jobs import JobKind, JobState
from core.tracking.queries import measure_backlog
from core.versions.privacy_rounding import coarse, coarse_certificate
from core.versions.queries import models_in_service
from core.webhooks.registrations import count_failing
from service.context import Context, ContextDep
from service.http.auth import Reader
from service.http.problems import problem_responses
from service.http.routes import CheckedRoute
from service.prometheus_counters import REGISTRY

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
            yield from self.operations(session)

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
        waiting.add_metric([], age_of_oldest(rows))
        messages, heard = count_messages_and_workers(session, now() - self.worker_timeout)
        unsent.add_metric([], messages)
        workers.add_metric([], heard)
        return jobs, waiting, took, workers, unsent, *self.queues(rows)

    def queues(self, rows: Sequence[JobCount]) -> Iterable[Metric]:
        """What the workers of each queue have to do. A queue without workers has old jobs, none of which runs."""
        jobs = GaugeMetricFamily("amend_queue_jobs", "Number of jobs by queue and state.", labels=["queue", "state"])
        waiting = GaugeMetricFamily(
            "amend_queue_waiting_seconds", "Age of the oldest queued job of a queue in seconds.", labels=["queue"]
        )
        for queue in QUEUES:
            here = [row for row in rows if row.queue == queue]
            for state in (JobState.QUEUED, JobState.RUNNING):
                jobs.add_metric([queue, state.value], sum(row.count for row in here if row.state is state))
            waiting.add_metric([queue], age_of_oldest(here))
        abandoned = GaugeMetricFamily(
            "amend_jobs_abandoned",
            "Number of running jobs whose worker has stopped sending heartbeats.",
            sum(row.abandoned for row in rows),
        )
        return jobs, waiting, abandoned

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
        failed = gauge(
            "gate_failed", "1 if the champion or the last confirmed version failed the promotion gate, 0 otherwise."
        )
        windows, worse = newest_windows(session), failed_in_service(session)
        for model in models_in_service(session):
            quarantined.add_metric([model.name], model.quarantined_count)
            failed.add_metric([model.name], model.id in worse)
            if (drift := model.drift) is not None:
                drifting.add_metric([model.name], len(drift.drifted["columns"]))
                shifted.add_metric([model.name], drift.drifted["predictions"])
                if drift.report is not None:
                    psi.add_metric([model.name], max_psi(drift.report))
            if (window := windows.get(model.id)) is not None:
                alarm.add_metric([model.name], window.alarm)
                for contestant, values in window.metrics.items():
                    for name, value in round_metrics(values, [window]).items():
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
        quality = (quarantined, failed, unseen, alarm, psi, drifting, shifted)
        return examples, pending, held, number, age, holdout, bound, within, agreed, *quality

    def erasures(self, session: Session) -> Iterable[Metric]:
        erasures = GaugeMetricFamily("amend_erasures", "Number of erasure requests by state.", labels=["state"])
        overdue = GaugeMetricFamily("amend_erasures_overdue", "Number of erasure requests past their due date.")
        counts = {state: (count, late) for state, count, late in count_erasures(session)}
        for state in ErasureState:
            erasures.add_metric([state.value], counts.get(state, (0, 0))[0])
        overdue.add_metric([], sum(late for _, late in counts.values()))
        pending = measure_open(session)
        oldest = GaugeMetricFamily("amend_erasure_oldest_seconds", "Age of the oldest open erasure request in seconds.")
        oldest.add_metric([], seconds_since(pending.oldest))
        due = GaugeMetricFamily("amend_erasures_due_soon", "Number of open erasure requests due within a week.")
        due.add_metric([], pending.due_soon)
        stuck = GaugeMetricFamily("amend_erasures_stuck", "Number of erasures in progress for more than a day.")
        stuck.add_metric([], pending.stuck)
        return erasures, overdue, oldest, due, stuck

    def operations(self, session: Session) -> Iterable[Metric]:
        def gauge(name: str, description: str, value: float | None) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"amend_{name}", description, value)

        tick = last_tick(session)
        events, since = measure_backlog(session)
        failing, disabled = count_failing(session)
        ago = None if tick is None else seconds_since(tick)  # without a value if it never ran
        yield gauge("scheduler_heartbeat_seconds", "Seconds since the scheduler last ran.", ago)
        yield gauge("mlflow_backlog", "Number of events not yet published to MLflow.", events)
        yield gauge("mlflow_backlog_seconds", "Age of the oldest of these events in seconds.", seconds_since(since))
        yield gauge(
            "register_head_seconds", "Seconds since the register's newest head was signed.", since_head(session)
        )
        yield gauge("webhooks_failing", "Number of webhooks whose last delivery failed.", failing)
        yield gauge("webhooks_disabled", "Number of webhooks that were disabled after days of failures.", disabled)


def since_head(session: Session) -> float | None:
    """Seconds since the register's newest head was signed; None if there is none, or if it cannot be read."""
    try:
        head = newest_head(session)
    except Unavailable:
        return None
    return None if head is None else seconds_since(datetime.fromisoformat(head["time"]))


class DiskCollector(Collector):
    """Space on the disks of this service, and the size of the database."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database, self.settings = database, settings

    def collect(self) -> Iterator[Metric]:
        free = GaugeMetricFamily("amend_disk_free_bytes", "Free space of the disk with a folder.", labels=["folder"])
        total = GaugeMetricFamily("amend_disk_bytes", "Size of the disk with a folder.", labels=["folder"])
        folders = {"home": self.settings.folder, "store": local_folder(self.settings.artifacts)}
        for name, folder in folders.items():
            if folder is not None and folder.is_dir():
                disk = shutil.disk_usage(folder)
                free.add_metric([name], disk.free)
                total.add_metric([name], disk.total)
        size = GaugeMetricFamily("amend_database_bytes", "Size of the database.")
        with self.database.read() as session:
            size.add_metric([], measure_size(session))
        return iter((free, total, size))


def local_folder(url: str) -> Path | None:
    """The folder of a store; None if it is not on this machine."""
    return Path(url.removeprefix("file://")) if "://" not in url or url.startswith("file://") else None


def age_of_oldest(rows: Iterable[JobCount]) -> float:
    """Seconds since the oldest queued job was enqueued; 0 if none is queued."""
    return seconds_since(min((row.oldest for row in rows if row.state is JobState.QUEUED), default=None))


def seconds_since(moment: datetime | None) -> float:
    """Seconds that have passed since a time; 0 if there is none."""
    return max(0.0, (now() - moment).total_seconds()) if moment else 0.0


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
        from_database += text_of(DiskCollector(context.database, context.settings))
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
