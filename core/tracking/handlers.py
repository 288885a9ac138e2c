"""What each kind of event means to MLflow. Called by the publisher, which alone imports this: MLflow takes seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from core.database import Database
from core.errors import NotFound
from core.kprior import State
from core.kprior.model.spec import Spec
from core.ledger.specs import spec_at
from core.tables.jobs import ENDED, Job, JobState
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionState
from core.tracking import artifacts, charts, comparison_report, descriptions, mlflow_client, registry, runs, timeline
from core.tracking.lineage import Lineage
from core.versions.store import Store


class EventHandler:
    """Tells one MLflow server. Everything is looked for before it is created: telling twice is telling once."""

    def __init__(self, database: Database, store: Store, url: str, hold: Callable[[], None]) -> None:
        self.database, self.store, self.url = database, store, url
        # of this database alone: others may publish from the same machine
        self.temporary = f"amend-{hashlib.sha256(str(database.engine.url).encode()).hexdigest()[:12]}-"
        registry.sweep_temporary_folders(self.temporary)
        self.client = mlflow_client.Client(url, hold)

    def handle(self, event: TrackingEvent) -> None:
        """Tell an event. Of a model that is deleted meanwhile there is nothing to tell but that."""
        if event.kind is TrackingEventKind.DELETED:
            artifacts.delete_all(self.client, self.url, event.model, event.model_id)
            mlflow_client.delete_model(self.client, event.model, event.model_id)
            return
        lineage = Lineage.of(self.database, event.model_id)
        if lineage is None:
            return
        if event.kind is TrackingEventKind.JOB and event.job_id is not None:
            self.handle_job(lineage, event.job_id)
            lineage = Lineage.of(self.database, event.model_id) or lineage
        else:
            self.describe(lineage)
        registry.set_aliases(self.client, lineage)

    def describe(self, lineage: Lineage) -> None:
        """Say anew what there is to say of a model that MLflow knows already: it may be held, or no more."""
        found, description = (
            self.client.get_experiment_by_name(lineage.model.name),
            descriptions.describe_model(lineage),
        )
        active = found is not None and found.lifecycle_stage == "active"
        known = active and mlflow_client.may_be_used_for(found.tags, lineage.model.id)
        if known and found.tags.get(runs.NOTE) not in (None, description):
            self.client.set_experiment_tag(found.experiment_id, runs.NOTE, description)

    def handle_job(self, lineage: Lineage, job_id: str) -> None:
        with self.database.read() as session:
            job = session.get(Job, job_id)
        if job is None or job.state not in ENDED:
            return
        version = next((v for v in lineage.versions if v.job_id == job_id), None)
        if version is None and job.state is JobState.SUCCEEDED:
            return  # there was nothing to do
        experiment, lines = mlflow_client.experiments(self.client, lineage.model)
        run = runs.ensure(self.client, experiment, job, version, lineage)
        if version is None:
            runs.fill(self.client, run, job, None, lineage)
        else:
            runs.fill(self.client, run, job, version, lineage.until(version.number))
            self.publish_version(lineage, version, run, lines)
        runs.end(self.client, run.info.run_id, job)
        self.client.set_experiment_tag(experiment, runs.NOTE, descriptions.describe_model(lineage))
        self.client.set_experiment_tag(lines, runs.NOTE, descriptions.describe_timeline(lineage))

    def publish_version(self, lineage: Lineage, version: Version, run: Any, lines: str) -> None:
        """Tell of a version as things stood when it was made, and let it be loaded."""
        then, client = lineage.until(version.number), self.client
        with self.database.read() as session:
            spec = spec_at(session, lineage.model.id, lineage.model.spec, version.position)
        state, model_id = self.state(version), None
        runs.fill_dataset(client, run, version, None if state is None else state.count, then)
        if state is not None:
            note = partial(self.note_folder, version)
            where = (run.info.experiment_id, run.info.run_id)
            model_id = registry.ensure_logged_model(client, *where, version, state, self.temporary, note)
            runs.fill_model(client, run, model_id, version)
        runs.fill_version(client, run, version, spec, model_id, then)
        # the weights, or figures that would tell of a person, are gone: no picture brings them back
        pictures = {} if version.state is VersionState.PURGED else self.draw(version, then, spec)
        runs.fill_figures(client, run.info.run_id, pictures, self.temporary)
        ids = timeline.fill(client, lines, version, then)
        if version is lineage.versions[-1]:
            timeline.describe(client, ids, pictures, self.temporary, lineage)
        if model_id is not None:
            self.register(lineage, version, run.info.run_id, model_id)
        self.publish_comparison(then, version, run.info.run_id)

    def draw(self, version: Version, lineage: Lineage, spec: Spec) -> dict[str, bytes]:
        """The pictures of a version; of a retrain also the page that compares it."""
        pictures, comparison = charts.of_version(version, lineage, spec["target"]), lineage.comparison_of(version)
        compared = comparison if comparison is not None and comparison.retrained == version.number else None
        if compared is not None and (page := comparison_report.render(compared, lineage, spec)):
            pictures[comparison_report.FILE] = page.encode()
        return pictures

    def note_folder(self, version: Version, folder: str) -> None:
        """Note where a version's weights are about to be: should MLflow lose its database, nobody else would know."""
        with self.database.write() as session:
            row = session.get(Version, (version.model_id, version.number))
            if row is not None:
                row.mlflow_folder = folder

    def register(self, lineage: Lineage, version: Version, run_id: str, model_id: str) -> None:
        """Register a version, and note under which number."""
        registry.ensure(self.client, lineage)
        number = registry.register(self.client, run_id, model_id, version, lineage.until(version.number))
        with self.database.write() as session:
            row = session.get(Version, (version.model_id, version.number))
            if row is not None:
                row.mlflow = {"run_id": run_id, "version": number}

    def publish_comparison(self, lineage: Lineage, version: Version, run_id: str) -> None:
        """Write a retrain's comparison to its run and to that of the adapted version."""
        comparison = lineage.comparison_of(version)
        if comparison is None or comparison.retrained != version.number:
            return
        figures = runs.comparison_metrics(comparison, version)
        runs.fill_comparison(self.client, run_id, version, figures)
        adapted = lineage.by_number.get(comparison.adapted)
        if adapted is not None and adapted.mlflow:
            runs.fill_comparison(self.client, adapted.mlflow["run_id"], adapted, figures)

    def state(self, version: Version) -> State | None:
        """A version's state; None if its weights are gone."""
        if version.state is VersionState.PURGED:
            return None
        try:
            return State.from_bytes(self.store.get(version.file))
        except NotFound:
            return None
