"""Which versions lose their weights by the policy, without a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure.purge import purge_versions
from core.ledger.quarantine import quarantine
from core.lifecycle import version_retention
from core.lifecycle.version_retention import prune_due
from core.models.policy import Policy, patch
from core.tables.bookkeeping import OrphanFile
from core.tables.erasures import Part
from core.tables.jobs import Job, JobState
from core.tables.ledger import PendingExample
from core.tables.models import Model
from core.tables.tracking import TrackingEvent, TrackingEventKind
from core.tables.versions import Version, VersionKind, VersionState
from tests.core.jobs.rows import add_training, enter_job, model_with
from tests.core.ledger.reference_ledger import locked

ADAPTED, TRAINED = VersionKind.ADAPTED, VersionKind.TRAINED
SUPERSEDED, CANDIDATE, REJECTED = VersionState.SUPERSEDED, VersionState.CANDIDATE, VersionState.REJECTED
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def model_with_versions(database: Database, count: int, step: timedelta = HOUR, **policy: Any) -> Model:
    """A model with adapted versions after a trained one, one per position and step; the last one is the champion."""
    model = model_with(database, **policy)
    add_training(database, model, count)

    def enter(session: Session, row: Model) -> None:
        for number in range(1, count + 1):
            version = Version(
                model_id=row.id,
                number=number,
                kind=TRAINED if number == 1 else ADAPTED,
                state=SUPERSEDED,
                position=number,
                method="kprior",
                memory={"size": 0, "fraction": 0.0},
                metrics={"loss": 0.5},
                cost={"backward_passes": 1.0, "data_passes": 1.0, "seconds": 1.0},
                sha256="ab",
                file=f"models/{row.id}/{number}.safetensors",
                dataset_digest="0" * 64,
                created_at=START + number * step,
            )
            session.add(version)
        version.state = VersionState.CHAMPION
        row.champion = row.tip = row.confirmed = count

    locked(database, model, enter)
    return model


def change(database: Database, model: Model, number: int, **values: Any) -> None:
    with database.write() as session:
        for name, value in values.items():
            setattr(session.get_one(Version, (model.id, number)), name, value)


def change_model(database: Database, model: Model, **values: Any) -> None:
    with database.write() as session:
        for name, value in values.items():
            setattr(session.get_one(Model, model.id), name, value)


def kept(database: Database, model: Model) -> list[int]:
    """The numbers of the versions that have their weights."""
    query = select(Version.number).where(Version.model_id == model.id, Version.state != VersionState.PURGED)
    with database.read() as session:
        return list(session.scalars(query.order_by(Version.number)))


def events(database: Database, model: Model) -> int:
    told = (TrackingEvent.model_id == model.id, TrackingEvent.kind == TrackingEventKind.PURGED)
    with database.read() as session:
        return session.scalar(select(func.count()).where(*told)) or 0


def test_the_newest_and_one_per_interval_keep_their_weights(database: Database) -> None:
    model = model_with_versions(database, 30, step=6 * HOUR, versions={"keep": 5, "every": "2d"})
    change(database, model, 8, state=CANDIDATE)
    prune_due(database)
    # 1 is the first of its interval, from the 1st to the 2nd of January; 8 would be of the next one, but never served
    assert kept(database, model) == [1, 9, 16, 24, *range(26, 31)]
    with database.read() as session:
        gone = session.get_one(Version, (model.id, 2))
        assert (gone.metrics, gone.sha256) == ({"loss": 0.5}, "ab"), "metrics stay"
        assert session.get(OrphanFile, gone.file) is not None, "the tick deletes the file"
        assert session.get(OrphanFile, session.get_one(Version, (model.id, 9)).file) is None
    assert events(database, model) == 1
    prune_due(database)
    assert events(database, model) == 1, "there is nothing left to do"


def test_null_keeps_all_and_a_stricter_policy_applies_to_old_versions(database: Database) -> None:
    model = model_with_versions(database, 8, versions=None)
    prune_due(database)
    assert kept(database, model) == list(range(1, 9))
    strict = Policy.model_validate({"versions": {"keep": 2, "every": None}})
    change_model(database, model, policy=strict.plain(), pruned_version=0)  # as the endpoint does
    prune_due(database)
    assert kept(database, model) == [1, 7, 8]


def test_versions_in_use_keep_their_weights(database: Database) -> None:
    policy = {"versions": {"keep": 1, "every": None}, "challenger": 3}
    model = model_with_versions(database, 14, **policy)
    change_model(database, model, champion=12, tip=5, confirmed=6)
    change(database, model, 7, kind=TRAINED)  # the last full retrain
    change(database, model, 8, state=REJECTED)  # can still be accepted
    change(database, model, 4, state=REJECTED)  # the tip is ahead of it
    change(database, model, 13, state=CANDIDATE)
    prune_due(database)
    assert kept(database, model) == [1, 3, 5, 6, 7, 8, 12, 13, 14]


def test_if_an_erasure_purged_the_first_and_the_confirmed_version_their_successors_stay(database: Database) -> None:
    model = model_with_versions(database, 9, versions={"keep": 1, "every": None})
    change_model(database, model, confirmed=5)
    for number in (1, 5):
        change(database, model, number, state=VersionState.PURGED, sha256="")
    prune_due(database)
    assert kept(database, model) == [2, 6, 9]


def test_versions_whose_examples_are_in_quarantine_wait_for_the_decision(database: Database) -> None:
    model = model_with_versions(database, 6, versions={"keep": 1, "every": None})
    change(database, model, 3, state=REJECTED)
    locked(database, model, lambda session, row: quarantine(session, row, 2, 3, 3))
    prune_due(database)
    assert kept(database, model) == [1, 3, 6]


def test_a_running_job_keeps_all_versions(database: Database) -> None:
    model = model_with_versions(database, 6, versions={"keep": 1, "every": None})
    job = enter_job(database, model, state=JobState.RUNNING)
    prune_due(database)
    assert len(kept(database, model)) == 6
    with database.write() as session:
        session.get_one(Job, job).state = JobState.SUCCEEDED
    prune_due(database)
    assert kept(database, model) == [1, 6]


def test_many_versions_are_purged_in_several_ticks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_retention, "VERSIONS_PER_TRANSACTION", 4)
    model = model_with_versions(database, 12, versions={"keep": 1, "every": None})
    left = []
    for _ in range(4):
        prune_due(database)
        left.append(len(kept(database, model)))
    assert left == [8, 4, 2, 2]


def test_an_erasure_deletes_what_retention_left_of_a_version(database: Database) -> None:
    model = model_with_versions(database, 6, versions={"keep": 1, "every": None}, erasure={"keep_superseded": "1d"})
    with database.write() as session:
        values = {"model_id": model.id, "holdout": False, "layout_position": 0, "x": b"", "mean": b"12345678"}
        session.add(PendingExample(id="p", version=3, **values))
    prune_due(database)
    with database.write() as session:
        assert session.get_one(PendingExample, (model.id, "p")).version == 3, "late labels are still evaluated"
        part = Part(model_id=model.id, positions=[3], first_position=3, removal_position=9, version=6)
        purge_versions(session, session.get_one(Model, model.id), part)
        session.flush()
        version = session.get_one(Version, (model.id, 3))
        assert (version.metrics, version.sha256, version.purge_at) == ({}, "", None)
        assert session.get_one(PendingExample, (model.id, "p")).mean is None


@pytest.mark.parametrize("versions", [{"keep": 0}, {"every": "1y"}, {"newest": 3}, 50])
def test_an_invalid_policy_is_rejected(versions: object) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"versions": versions})


def test_fields_of_the_policy_are_patched_one_by_one() -> None:
    policy = patch(Policy(), {"versions": {"keep": 7}})
    assert policy.plain()["versions"] == {"keep": 7, "every": "7d"}
    assert patch(patch(policy, {"versions": None}), {"versions": {}}).versions == Policy().versions
