"""What is published for each kind of event. Only the publisher imports this module: MLflow takes seconds to import."""

import hashlib
from collections.abc import Callable
from functools import partial

from mlflow.entities import Run

from core.analyses import records
from core.charts import standalone
from core.database import Database
from core.encoders.uploads import find_file
from core.errors import NotFound
from core.kprior import State
from core.kprior.model.spec import Spec
from core.ledger.spec_history import spec_at
from core.models.policy import policy_of
from core.tables.analyses import Analysis
from core.tables.jobs import ENDED, Job, JobKind, JobState
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionState
from core.tracking import (
    analyses,
    artifacts,
    charts,
    comparison_report,
    descriptions,
    gateway,
    packaging,
    registered_model,
    runs,
    timeline,
)
from core.tracking.lineage import Lineage
from core.tracking.purging import delete_versions
from core.versions.purging import may_be_in_mlflow
from core.versions.store import Store


class EventHandler:
    """Publishes to one MLflow server. It looks for everything before creating it, so repeating an event is harmless."""

    def __init__(self, database: Database, store: Store, url: str, hold: Callable[[], None]) -> None:
        self.database, self.store = database, store
        # a prefix of its own for each database: others may publish from the same machine
        self.temporary = f"amend-{hashlib.sha256(str(database.engine.url).encode()).hexdigest()[:12]}-"
        registered_model.sweep_temporary_folders(self.temporary)
        self.gateway = gateway.Gateway(url, hold)

    def handle(self, event: TrackingEvent) -> None:
        """Publish an event. Events of a model that was deleted meanwhile are dropped, except for the deletion."""
        if event.kind is TrackingEventKind.DELETED:
            artifacts.delete_all(self.gateway, event.model, event.model_id)
            gateway.delete_model(self.gateway, event.model, event.model_id)
            return
        lineage = Lineage.of(self.database, event.model_id)
        if lineage is None:
            return
        if event.kind is TrackingEventKind.JOB and event.job_id is not None:
            self.handle_job(lineage, event.job_id)
            lineage = Lineage.of(self.database, event.model_id) or lineage
        else:
            self.describe(lineage)
        registered_model.set_aliases(self.gateway, lineage)
        if event.kind is TrackingEventKind.PURGED:  # after the aliases, so that loading by an alias always works
            purged = [v for v in lineage.versions if v.state is VersionState.PURGED and may_be_in_mlflow(v)]
            delete_versions(self.database, self.gateway, lineage, purged)

    def describe(self, lineage: Lineage) -> None:
        """Update the description of a model that is published already, for example because it is held now."""
        found = self.gateway.client.get_experiment_by_name(lineage.model.name)
        if found is None or found.lifecycle_stage != "active":
            return
        description = descriptions.describe_model(lineage)
        if gateway.may_be_used_for(found.tags, lineage.model.id) and found.tags.get(runs.NOTE) not in (
            None,
            description,
        ):
            self.gateway.client.set_experiment_tag(found.experiment_id, runs.NOTE, description)

    def handle_job(self, lineage: Lineage, job_id: str) -> None:
        with self.database.read() as session:
            job = session.get(Job, job_id)
            analysis = records.find_of_job(session, job_id)
        if job is None or job.state not in ENDED:
            return
        if job.kind is JobKind.ANALYSE:
            self.publish_analysis(lineage, job, analysis)
            return
        version = next((v for v in lineage.versions if v.job_id == job_id), None)
        if version is None and job.state is JobState.SUCCEEDED:
            return  # the job had nothing to do
        experiment, lines = gateway.experiments(self.gateway, lineage.model)
        run = runs.ensure(self.gateway, experiment, job, version, lineage)
        if version is None:
            runs.fill(self.gateway, run, job, None, lineage)
        else:
            runs.fill(self.gateway, run, job, version, lineage.until(version.number))
            self.publish_version(lineage, version, run, lines)
        runs.end(self.gateway, run.info.run_id, job)
        self.gateway.client.set_experiment_tag(experiment, runs.NOTE, descriptions.describe_model(lineage))
        self.gateway.client.set_experiment_tag(lines, runs.NOTE, descriptions.describe_timeline(lineage))

    def publish_analysis(self, lineage: Lineage, job: Job, analysis: Analysis | None) -> None:
        """Publish rounded aggregates of an analysis, unless an erasure has deleted it since."""
        if analysis is None or analysis.result is None:
            return
        experiment = gateway.experiments(self.gateway, lineage.model)[0]
        name = f"{analysis.kind.replace('_', ' ')}, position {analysis.position}"
        run = runs.ensure(self.gateway, experiment, job, None, lineage, name)
        runs.fill(self.gateway, run, job, None, lineage)
        analyses.publish(self.gateway, run, job, analysis, self.temporary)
        runs.end(self.gateway, run.info.run_id, job)

    def publish_version(self, lineage: Lineage, version: Version, run: Run, lines: str) -> None:
        """Publish a version as it was when it was created, and make it loadable."""
        then, mlflow = lineage.until(version.number), self.gateway
        with self.database.read() as session:
            spec = spec_at(session, lineage.model.id, lineage.model.spec, version.position)
        state, model_id = self.state(version), None
        runs.fill_dataset(mlflow, run, version, then)
        if state is not None:
            note = partial(self.note_folder, version)
            where = (run.info.experiment_id, run.info.run_id)
            threshold, encoder_file = policy_of(lineage.model).threshold, find_file(self.store, state.spec)
            write = partial(packaging.package, state=state, threshold=threshold, encoder_file=encoder_file)
            model_id = registered_model.ensure_logged_model(mlflow, *where, version, write, self.temporary, note)
            runs.fill_model(mlflow, run, model_id, version)
        runs.fill_version(mlflow, run, version, spec, model_id, then)
        # no charts of a purged version: they would reveal data that was erased
        pictures = {} if version.state is VersionState.PURGED else self.draw(version, then, spec)
        runs.fill_figures(mlflow, run.info.run_id, pictures, self.temporary)
        ids = timeline.fill(mlflow, lines, version, then)
        if version is lineage.versions[-1]:
            timeline.describe(mlflow, ids, pictures, self.temporary, lineage)
        if model_id is not None:
            self.register(lineage, version, run.info.run_id, model_id)
        self.publish_comparison(then, version, run.info.run_id)

    def draw(self, version: Version, lineage: Lineage, spec: Spec) -> dict[str, bytes]:
        """The charts of a version, and the comparison report if it is a retrain."""
        drawn, comparison = charts.of_version(version, lineage, spec["target"]), lineage.comparison_of(version)
        pictures = {name: standalone(chart).encode() for name, chart in drawn.items()}
        compared = comparison if comparison is not None and comparison.retrained == version.number else None
        if compared is not None and (page := comparison_report.render(compared, lineage, spec)):
            pictures[comparison_report.FILE] = page.encode()
        return pictures

    def note_folder(self, version: Version, folder: str) -> None:
        """Record the folder of a version's weights before the upload: MLflow might lose its database."""
        with self.database.write() as session:
            row = session.get(Version, (version.model_id, version.number))
            if row is not None:
                row.mlflow_folder = folder

    def register(self, lineage: Lineage, version: Version, run_id: str, model_id: str) -> None:
        """Register a version, and record its number in the registry."""
        registered_model.ensure(self.gateway, lineage)
        number = registered_model.register(self.gateway, run_id, model_id, version, lineage.until(version.number))
        with self.database.write() as session:
            row = session.get(Version, (version.model_id, version.number))
            if row is not None:
                row.mlflow = {"run_id": run_id, "version": number}

    def publish_comparison(self, lineage: Lineage, version: Version, run_id: str) -> None:
        """Write a retrain's comparison to its run and to the run of the adapted version."""
        comparison = lineage.comparison_of(version)
        if comparison is None or comparison.retrained != version.number:
            return
        figures = runs.comparison_metrics(comparison, version)
        runs.fill_comparison(self.gateway, run_id, version, figures)
        adapted = lineage.by_number.get(comparison.adapted)
        if adapted is not None and adapted.mlflow:
            runs.fill_comparison(self.gateway, adapted.mlflow["run_id"], adapted, figures)

    def state(self, version: Version) -> State | None:
        """A version's state; None if its weights no longer exist."""
        if version.state is VersionState.PURGED:
            return None
        try:
            return State.from_bytes(self.store.get(version.file))
        except NotFound:
            return None
