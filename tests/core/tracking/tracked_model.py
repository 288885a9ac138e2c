"""A model with a past, made as the worker makes it: real ledger, real jobs, real versions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from core import ledger
from core.database import Database
from core.jobs import queue
from core.ledger.batch import Batch
from core.models import catalog
from core.models.policy import Policy, patch, policy_of
from core.models.spec import SpecSchema
from core.models.training_options import TrainingSchema
from core.promotion.decision import promote
from core.settings import Settings
from core.tables.jobs import Job, JobKind
from core.tables.ledger import Example
from core.tables.tracking import TrackingEvent, TrackingEventKind, enqueue_event
from core.tables.versions import Version
from core.tracking.publisher import publish
from core.versions.queries import find_version
from core.versions.store import Store
from worker.context import Context
from worker.job_runner import run

POLICY: dict[str, Any] = {"memory": {"fraction": 0.2}, "holdout": 0.3}


class OutboxSender(Context):
    """The context of a worker without a broker: jobs are run by hand."""

    def send(self, job_id: str, queue: str) -> None:
        pass


@dataclass
class TrackedModel:
    """One model of one database."""

    database: Database
    settings: Settings
    name: str = field(default_factory=lambda: f"m-{uuid.uuid4().hex[:8]}")

    def create(self, **spec: Any) -> TrackedModel:
        given = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}, **spec}
        policy = patch(Policy(), {**POLICY, **given.pop("policy", {})})
        training = TrainingSchema(**given.pop("training", {}))
        with self.database.write() as session:
            catalog.create(session, self.name, SpecSchema.model_validate(given).plain(), training, policy)
        return self

    def add(self, x: Any, y: Any) -> None:
        ids = [f"person-{uuid.uuid4().hex}" for _ in y]
        dtype = self.model.spec["input"].get("dtype", "float32")
        x = np.asarray(x, dtype).reshape(len(ids), -1)
        batch = Batch(pa.array(ids), [None] * len(ids), x, np.asarray(y, np.float64), [None] * len(ids))
        ledger.add(self.database, self.model.id, policy_of(self.model).holdout_draw, batch)

    def remove(self, many: int) -> None:
        with self.database.write() as session:
            model = catalog.find(session, self.name, None, lock=True)
            ids = select(Example.id).where(Example.model_id == model.id, Example.removed.is_(None)).limit(many)
            found = list(session.scalars(ids))
            ledger.remove(session, model, Example.id, found, found)

    def job(self, kind: JobKind, start: bool = True, request_id: str | None = None) -> str:
        """Have a job due, and run it."""
        with self.database.write() as session:
            job = queue.enqueue(session, catalog.find(session, self.name, None, lock=True), kind, request_id).id
        if start:
            run(OutboxSender(self.settings, None), job)  # type: ignore[arg-type]
        return job

    def adapt(self) -> Version:
        return self.made_by(self.job(JobKind.ADAPT))

    def retrain(self) -> Version:
        return self.made_by(self.job(JobKind.RETRAIN))

    def made_by(self, job: str) -> Version:
        with self.database.read() as session:
            found = session.get_one(Job, job)
            assert found.version is not None, found.error
            return find_version(session, catalog.find(session, self.name, None), found.version)

    def promote(self, number: int) -> None:
        with self.database.write() as session:
            model = catalog.find(session, self.name, None, lock=True)
            promote(session, model, find_version(session, model, number), by="somebody")

    def delete(self) -> None:
        with self.database.write() as session:
            model = catalog.find(session, self.name, None, lock=True)
            enqueue_event(session, model, TrackingEventKind.DELETED)
            session.delete(model)

    def tell(self, kind: TrackingEventKind, job: str | None = None) -> None:
        with self.database.write() as session:
            enqueue_event(session, catalog.find(session, self.name, None), kind, job)

    def publish(self, url: str, alone: bool = False) -> int:
        """Tell MLflow all that waits; or what is about this model alone."""
        return publish(self.database, self.store, url, "tests", model=self.name if alone else None)

    @property
    def store(self) -> Store:
        return Store(self.settings.artifacts)

    @property
    def model(self) -> Any:
        with self.database.read() as session:
            return catalog.find(session, self.name, None)

    @property
    def versions(self) -> list[Version]:
        with self.database.read() as session:
            found = select(Version).where(Version.model_id == self.model.id).order_by(Version.number)
            return list(session.scalars(found))

    @property
    def jobs(self) -> list[Job]:
        with self.database.read() as session:
            return list(session.scalars(select(Job).where(Job.model_id == self.model.id).order_by(Job.created_at)))

    @property
    def entries(self) -> list[TrackingEvent]:
        with self.database.read() as session:
            return list(session.scalars(select(TrackingEvent).order_by(TrackingEvent.id)))


def cloud(many: int, seed: int = 0, shift: float = 0.0) -> tuple[Any, Any]:
    """Points of two classes that nearly come apart."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(many, 2))
    return x, x @ [1.0, -2.0] + shift + 0.5 * rng.normal(size=many) > 0


NewTrackedModel = Callable[..., TrackedModel]


def trained(new_tracked: NewTrackedModel, many: int = 1) -> TrackedModel:
    """A model with some versions, not told yet."""
    tracked = new_tracked()
    for seed in range(many):
        tracked.add(*cloud(60, seed))
        tracked.adapt()
    return tracked
