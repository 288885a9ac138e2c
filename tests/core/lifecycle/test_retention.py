"""Examples that are too old by the policy go, as if somebody had removed them. Rows are moved to the past here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import select, update

from core.clock import now
from core.database import Database
from core.erasure.decisions import refuse
from core.erasure.request_details import RequestDetails
from core.erasure.requests import receive
from core.ledger.quarantine import quarantine
from core.ledger.subject_hashes import subject_hash
from core.lifecycle import example_retention
from core.lifecycle.example_retention import expire_due
from core.models.policy import Policy, patch
from core.tables.jobs import Job
from core.tables.ledger import Change, Example
from core.tables.models import Model
from tests.core.jobs.rows import enter_version
from tests.core.ledger.reference_ledger import SECRET, Row, add, correct, gap_free, locked, new_model, runs, stored

DAY = timedelta(days=1)


def model_that_expires(database: Database, expire: str | None = "30d") -> Model:
    model = new_model(database)

    def set_policy(_session: object, row: Model) -> None:
        row.policy = Policy(expire=expire, holdout=0.3).plain()

    locked(database, model, set_policy)
    return model


def age(database: Database, model: Model, first: int, last: int, by: timedelta) -> None:
    """Let what happened at some positions have happened earlier."""
    with database.write() as session:
        ours = (Change.model_id == model.id, Change.first >= first, Change.last <= last)
        session.execute(update(Change).where(*ours).values(created_at=now() - by))


def named(count: int, prefix: str = "r") -> list[Row]:
    return [Row(f"{prefix}{i}", split=False) for i in range(count)]


def in_force(database: Database, model: Model) -> list[str]:
    with database.read() as session:
        ours = select(Example.id).where(Example.model_id == model.id, Example.removed.is_(None))
        return list(session.scalars(ours.order_by(Example.position)))


def jobs(database: Database, model: Model) -> list[Job]:
    with database.read() as session:
        return list(session.scalars(select(Job).where(Job.model_id == model.id)))


def test_examples_older_than_the_policy_allows_are_removed(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, [*named(2), Row("held out", split=True)])
    add(database, model, named(2, "later"))
    enter_version(database, model)
    age(database, model, 1, 3, 31 * DAY)
    age(database, model, 4, 5, 29 * DAY)
    expire_due(database)
    assert in_force(database, model) == ["later0", "later1"]
    now_ = stored(database, model)
    assert (now_.head, now_.train_count, now_.holdout_count, now_.removed_count) == (8, 2, 0, 3)
    assert runs(database, model)[-1] == (6, 8, "removed")
    [job] = jobs(database, model)
    assert (job.kind.value, job.to_position) == ("adapt", 8)
    expire_due(database)
    assert stored(database, model).head == 8


def test_quarantined_examples_expire_too(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, named(2))
    enter_version(database, model)
    add(database, model, [*named(2, "bad"), Row("held out", split=True)])
    locked(database, model, lambda session, row: quarantine(session, row, 2, 5, version=2))
    add(database, model, named(1, "later"))
    age(database, model, 3, 8, 31 * DAY)
    assert expire_due(database) == 0  # the first two are not that old, and nothing may overtake them
    age(database, model, 1, 2, 31 * DAY)
    assert expire_due(database) == 5
    now_ = stored(database, model)
    assert (now_.train_count, now_.removed_count, now_.quarantined_count) == (1, 5, 0)
    assert in_force(database, model) == ["later0"]


def test_without_a_policy_everything_stays(database: Database) -> None:
    model = model_that_expires(database, None)
    add(database, model, named(3))
    age(database, model, 1, 3, 4000 * DAY)
    expire_due(database)
    assert len(in_force(database, model)) == 3


def test_a_corrected_example_counts_from_its_correction(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, named(3))
    correct(database, model, [Row("r1", x=(5.0, 5.0), split=False)])
    age(database, model, 1, 3, 31 * DAY)
    expire_due(database)
    assert in_force(database, model) == ["r1"]
    age(database, model, 4, 4, 31 * DAY)
    expire_due(database)
    assert in_force(database, model) == []


def test_many_changes_are_processed_in_small_transactions(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_retention, "POSITIONS_PER_TRANSACTION", 4)
    monkeypatch.setattr(example_retention, "TRANSACTIONS_PER_TICK", 3)
    model = model_that_expires(database)
    add(database, model, named(10))
    for i in range(5):
        add(database, model, named(1, f"one{i}-"))
    age(database, model, 1, 14, 31 * DAY)
    expire_due(database)
    assert [last - first + 1 for first, last, kind in runs(database, model) if kind == "removed"] == [4, 4, 4]
    expire_due(database)
    assert in_force(database, model) == ["one4-0"]
    now_ = stored(database, model)
    assert (now_.expired_position, now_.head) == (14, 29)
    assert gap_free(runs(database, model), 29)


def test_one_of_many_schedulers_removes_expired_examples(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, named(50))
    enter_version(database, model)
    age(database, model, 1, 50, 31 * DAY)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: expire_due(database), range(4)))
    assert runs(database, model)[1:] == [(51, 100, "removed")]
    assert len(jobs(database, model)) == 1


def test_examples_that_arrive_gradually_are_learnt_in_steps(database: Database) -> None:
    """Not as many adaptations again as there were examples: a thousand in a lifetime."""
    model = model_that_expires(database, "1000d")
    for i in range(4):
        add(database, model, named(1, f"one{i}-"))
    midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
    for i in range(4):
        with database.write() as session:
            came = midnight - 1000 * DAY + timedelta(hours=1 - i) - timedelta(seconds=1)
            session.execute(
                update(Change).where(Change.model_id == model.id, Change.last == 4 - i).values(created_at=came)
            )
    expire_due(database)
    assert in_force(database, model) == ["one3-0"]  # that came on the day that has not ended, a thousand days ago


def test_what_a_held_request_restricts_and_is_too_old_does_not_come_back(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, [Row("old", subject="somebody", split=False)])
    add(database, model, [Row("new", subject="somebody", split=False), *named(1)])
    with database.write() as session:
        filing = RequestDetails(subject_hash("somebody", SECRET), hold=True)
        erasure = receive(session, filing, SECRET, "key")
        session.expunge(erasure)
    age(database, model, 1, 1, 31 * DAY)
    expire_due(database)
    with database.write() as session:
        refuse(session, session.merge(erasure, load=True), "no", "key")
    assert in_force(database, model) == ["r0", "new"]


def test_a_held_model_loses_the_examples_and_is_adapted_later(database: Database) -> None:
    model = model_that_expires(database)
    add(database, model, named(3))
    enter_version(database, model)

    def hold(_session: object, row: Model) -> None:
        row.held_at = now()

    locked(database, model, hold)
    age(database, model, 1, 3, 31 * DAY)
    expire_due(database)
    assert in_force(database, model) == []
    assert jobs(database, model) == []


@pytest.mark.parametrize("expire", ["", "0d", "1y", "4000d", 30])
def test_a_time_that_is_none_is_refused(expire: object) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"expire": expire})
    assert patch(patch(Policy(), {"expire": "365d"}), {"expire": None}).expire is None
