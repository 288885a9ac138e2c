"""Erasures that end while a worker computes: what it computed from the erased data is not stored.

Simulated histories found these races (`tests/simulation`); here, each of them is a sequence of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

import worker.drift_after_job
from core.clock import now
from core.database import Database
from core.erasure import requests
from core.jobs import leases
from core.ledger.additions import add_locked
from core.ledger.removals import remove
from core.models.policy import policy_of
from core.settings import Settings
from core.tables.erasures import Erasure, ErasureState
from core.tables.jobs import Job, JobKind
from core.tables.ledger import Example
from core.tables.models import Model
from core.tables.quality import DriftReport, QualityWindow
from core.tables.versions import Version, VersionState
from core.versions.store import Store
from tests.core.conftest import migrated
from tests.core.erasure.erasure_helpers import ask, find_erasure, give, parts, reach, somebody, store_of
from tests.core.jobs.rows import enter_version
from tests.core.ledger.reference_ledger import Row, add, batch, locked, new_model
from worker.job_attempt import JobAttempt
from worker.jobs.erase import champion_memory, complete, purge
from worker.versions.test_then_train import NewExamplesScored


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    yield from migrated(Settings(home=tmp_path))


def window(model: Model, **values: Any) -> QualityWindow:
    given = {"first_position": 3, "last_position": 14, "rows": 12, "weight": 12.0, "heaviest": 0.1, "metrics": {}}
    given |= {"scores": b"rows", "alarm": False}
    return QualityWindow(model_id=model.id, start=now(), rounded=False, **{**given, **values})


@pytest.mark.parametrize("role", ["champion", "frozen", "challenger"])
def test_a_window_keeps_no_predictions_of_a_version_that_was_purged_meanwhile(database: Database, role: str) -> None:
    model = new_model(database)
    add(database, model, [Row("a", split=False), Row("b", split=False)])
    for number in (1, 2):
        assert enter_version(database, model) == number
    with database.write() as session:
        session.get_one(Version, (model.id, 1)).state = VersionState.PURGED
    kept = window(model, champion=2, frozen=None)
    scored = NewExamplesScored(0, 14, (window(model, **{"champion": 2, "frozen": None, role: 1}), kept))
    locked(database, model, lambda session, row: scored.record(session, row, None))
    with database.read() as session:
        found = session.scalars(select(QualityWindow).where(QualityWindow.model_id == model.id)).all()
    assert [(row.scores, row.rounded) for row in found] == [(None, True), (b"rows", False)]


def test_a_retrain_at_an_earlier_position_does_not_have_examples_scored_again() -> None:
    model: Any = SimpleNamespace(scored_position=11)
    session: Any = None
    NewExamplesScored(11, 10).record(session, model, "job")
    assert model.scored_position == 11


@pytest.mark.parametrize("erased", [False, True])
def test_a_drift_report_that_may_count_erased_examples_is_not_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch, erased: bool
) -> None:
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", split=False)])
    number = enter_version(database, model)
    give(database, model, person, "b")
    report = {"position": 2, "version": number, "columns": [], "predictions": None}

    def measure(*_arguments: object) -> Any:
        if erased:
            ask(database, person)
        return report

    monkeypatch.setattr(worker.drift_after_job, "measure_drift", measure)
    monkeypatch.setattr(worker.drift_after_job, "State", SimpleNamespace(from_bytes=lambda *arguments: None))
    store = SimpleNamespace(get=lambda *arguments: b"")
    worker.drift_after_job.update_drift(SimpleNamespace(database=database, store=store, device=None), model.id)  # type: ignore[arg-type]
    with database.read() as session:
        assert (session.get(DriftReport, model.id) is None) == erased


@pytest.mark.parametrize("removed", [False, True])
def test_an_example_that_arrives_during_the_last_step_has_no_receipt_yet(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Otherwise nobody would recognise it: the person is recognised only from the receipt on."""
    model, other, person = new_model(database), new_model(database), somebody()
    give(database, model, person, "a")
    id = ask(database, person).id
    reach(database, id, model, ErasureState.PURGING)
    with database.write() as session:
        [waiting] = session.scalars(select(Job.id).where(Job.model_id == model.id, Job.kind == JobKind.ERASE))
        job = (leases.take(session, waiting, "worker", 60, 3) or ())[0]
        session.flush()
        session.expunge(job)
    store = store_of(database)
    context: Any = SimpleNamespace(database=database, store=store, settings=Settings(home=tmp_path))
    attempt = JobAttempt.of(context, job, model, "worker", lambda *arguments: None)
    purge(attempt, {id})

    def include(session: Session, erasures: Sequence[Erasure]) -> set[str]:
        add_locked(session, other.id, policy_of(other).holdout_draw, batch([Row("b", subject=person, split=False)]))
        if removed:
            remove(session, session.get_one(Model, other.id), Example.id, ["b"], ["b"])
        return set()

    with monkeypatch.context() as patched:
        patched.setattr(requests, "include_new_examples", include)
        complete(attempt, {id}, [])
    assert find_erasure(database, id).state is ErasureState.PURGING
    with database.write() as session:
        assert requests.include_new_examples(session, [session.get_one(Erasure, id)]) == {id}
    assert parts(database, id)[other.name].examples == 1
    with database.read() as session:
        assert requests.find_late(session, [session.get_one(Erasure, id)]) == set()


def test_a_champion_whose_file_was_lost_has_no_memory(database: Database, tmp_path: Path) -> None:
    """After a restore, the file of the champion may be gone: a later erasure has purged it."""
    model = new_model(database)
    add(database, model, [Row("a", split=False)])
    enter_version(database, model)
    with database.write() as session:
        session.get_one(Version, (model.id, 1)).file = f"models/{model.id}/lost.safetensors"
    with database.read() as session:
        assert champion_memory(session, Store(str(tmp_path)), session.get_one(Model, model.id)) == set()
