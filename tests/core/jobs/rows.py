"""Models, versions and jobs entered by hand, for tests of what the database decides."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import Database
from core.jobs import queue
from core.models.policy import Policy
from core.tables.jobs import Job, JobKind, Outbox
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from tests.core.ledger.reference_ledger import Row, add, locked, new_model

OWNER, OTHER = "here:1:a", "there:2:b"


def model_with(database: Database, **policy: Any) -> Model:
    """A model of two training examples, with a policy."""
    model = new_model(database)
    add_training(database, model, 2)
    with database.write() as session:
        found = session.get_one(Model, model.id)
        found.policy = Policy.model_validate(policy).model_dump(mode="json")
    return model


def add_training(database: Database, model: Model, n: int) -> None:
    """As many more training examples."""
    with database.read() as session:
        head = session.get_one(Model, model.id).head
    add(database, model, [Row(f"r{head + i}", split=False) for i in range(n)])


def enter_version(
    database: Database,
    model: Model,
    kind: VersionKind = VersionKind.TRAINED,
    created_at: datetime | None = None,
) -> int:
    """A version at the head, which becomes tip and champion; its number."""

    def enter(session: Session, row: Model) -> int:
        number = (row.tip or 0) + 1
        values = {
            "method": "",
            "memory": {},
            "metrics": {},
            "cost": {},
            "sha256": "",
            "file": "",
            "dataset_digest": "0" * 64,
        }
        if created_at is not None:
            values["created_at"] = created_at
        state = VersionState.CHAMPION
        session.add(Version(model_id=row.id, number=number, kind=kind, state=state, position=row.head, **values))
        row.champion = row.tip = number
        return number

    number: int = locked(database, model, enter)
    return number


def enter_job(database: Database, model: Model, kind: JobKind = JobKind.ADAPT, **values: Any) -> str:
    """A job up to the head, with some of its columns as given; its id."""

    def enter(session: Session, row: Model) -> str:
        job = queue.enqueue(session, row, kind)
        for name, value in values.items():
            setattr(job, name, value)
        return job.id

    job_id: str = locked(database, model, enter)
    return job_id


def shown(database: Database, job_id: str) -> Job:
    with database.read() as session:
        return session.get_one(Job, job_id)


def messages(database: Database, job_id: str) -> int:
    """How many messages about a job wait to be sent."""
    with database.read() as session:
        return len(session.scalars(select(Outbox.id).where(Outbox.job_id == job_id)).all())
