"""The moment in which a version is recorded: whatever goes wrong just then, a version has its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from celery import Celery
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.errors import Unavailable
from core.settings import Settings
from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.orphan_files import sweep
from core.versions.store import Store, StoredFile, folder_of
from tests.stack import Stack
from worker.context import Context
from worker.job_runner import run

pytestmark = pytest.mark.timing


class Unsure(Database):
    """A database whose answer to the commit of a version is lost on the way."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.lost = 0

    @contextmanager
    def write(self) -> Iterator[Session]:
        with super().write() as session:
            yield session
            recorded = any(isinstance(row, Version) and row.job_id for row in session)
        if recorded and not self.lost:
            self.lost += 1
            raise Unavailable("database_unavailable", "The connection is lost.")


class Slow(Store):
    """A store that takes its time: something happens between a file and its version."""

    def __init__(self, url: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(url)
        self.meanwhile = meanwhile

    def put(self, folder: str, data: bytes, before: Callable[[str], None] = lambda name: None) -> StoredFile:
        stored = super().put(folder, data, before)
        self.meanwhile()
        return stored


class Alone(Context):
    """A worker that nobody is told of."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.settings, Celery(set_as_current=False))

    def send(self, job_id: str, queue: str) -> None:
        pass


def job_on(stack: Stack, api: httpx.Client) -> tuple[str, str]:
    """A model and the job that trains it."""
    name = stack.model()
    rows = [{"id": f"{i}", "x": [i % 7, i % 3], "y": i % 2, "split": "train"} for i in range(50)]
    api.post(f"/v1/models/{name}/examples", json={"examples": rows}).raise_for_status()
    return name, api.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"]


def whole(stack: Stack, api: httpx.Client, name: str) -> None:
    """There is one version, it has its file and keeps it, and there is no other."""
    assert [v["version"] for v in api.get(f"/v1/models/{name}/versions").json()["items"]] == [1]
    sweep(stack.database, Store(stack.settings.artifacts))
    assert api.get(f"/v1/models/{name}/versions/1/weights").status_code == 200
    with stack.database.read() as session:
        [version] = session.scalars(select(Version).join(Model, Model.id == Version.model_id).where(Model.name == name))
    folder = Path(stack.settings.artifacts) / folder_of(version.model_id)
    assert [path.name for path in folder.iterdir()] == [Path(version.file).name]


def test_a_commit_whose_answer_is_lost_leaves_the_version_its_file(stack: Stack, api: httpx.Client) -> None:
    name, job = job_on(stack, api)
    context = Alone(stack)
    context.database = unsure = Unsure(stack.settings)
    run(context, job)
    assert unsure.lost == 1
    assert api.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    whole(stack, api, name)


def test_a_file_that_was_swept_away_because_its_worker_was_late_becomes_no_version(
    stack: Stack, api: httpx.Client
) -> None:
    """A worker slept until its lease had ended. Nobody took its job over: all others were busy."""
    name, job = job_on(stack, api)

    def sleep() -> None:
        with stack.database.write() as session:
            session.execute(update(Job).where(Job.id == job).values(lease_expires_at=now() - timedelta(seconds=1)))
        sweep(stack.database, Store(stack.settings.artifacts))

    context = Alone(stack)
    context.store = Slow(stack.settings.artifacts, sleep)
    run(context, job)
    context.store = Store(stack.settings.artifacts)
    run(context, job)
    assert api.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    whole(stack, api, name)
