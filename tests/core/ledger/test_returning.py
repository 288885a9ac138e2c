"""Examples about people whose data was erased, as the ledger stores them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, select, update

from core import ledger, suppressions
from core.audit.entries import Origin
from core.clock import now
from core.database import Database
from core.errors import Conflict
from core.ledger.additions import Added, Ingest
from core.ledger.quarantine import count_returned, quarantined_versions
from core.ledger.subject_hashes import subject_hash
from core.settings import Settings
from core.suppressions import Screen
from core.tables.audit import AuditEntry, Suppression
from core.tables.models import Model
from core.tables.webhooks import Delivery, Webhook
from tests.core.ledger.reference_ledger import DRAW, SECRET, Row, batch, gap_free, new_model, runs, stored


@pytest.fixture
def person() -> str:
    return f"person {uuid.uuid4().hex}"


def erase(database: Database, person: str) -> None:
    """What completing an erasure does."""
    with database.write() as session:
        suppressions.suppress(session, subject_hash(person, SECRET))


def screen_of(settings: Settings, treatment: str = "quarantine") -> Screen:
    return Screen(settings.model_copy(update={"returning_subjects": treatment}))


def add(database: Database, model: Model, rows: list[Row], screen: Screen) -> Added:
    ingest = Ingest(screen, Origin("k1", "192.0.2.7", "request"), model.name)
    return ledger.add(database, model.id, DRAW, batch(rows), None, ingest)


@contextmanager
def lookups(database: Database) -> Iterator[list[str]]:
    """The queries for returning people."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.extend([statement] * ("FROM suppressions" in statement and statement.startswith("SELECT")))

    event.listen(database.engine, "before_cursor_execute", note)
    yield found
    event.remove(database.engine, "before_cursor_execute", note)


def test_nobody_is_looked_up_until_the_first_erasure_and_then_with_one_query(empty_database: Database) -> None:
    database = empty_database
    model, screen = new_model(database), screen_of(database._info["settings"])
    with lookups(database) as found:
        assert add(database, model, [Row("no subject")], screen) == Added(1, 0, 1, 1)
        assert found == []
        assert add(database, model, [Row("a", subject="a")], screen) == Added(1, 0, 2, 2)
        assert len(found) == 1  # this process did not know yet
        assert add(database, model, [Row("b", subject="b")], screen) == Added(1, 0, 3, 3)
        assert len(found) == 1
    # another process completes an erasure: this one does not know, but the statement that stores the batch does
    erase(database, "b")
    assert add(database, model, [Row("b2", subject="b"), Row("c", subject="c")], screen) == Added(2, 0, 4, 5, 1)
    with lookups(database) as found:
        rows = [Row(f"many {i}", subject=f"many {i}") for i in range(40_000)]
        assert add(database, model, rows, screen).quarantined == 0
        assert len(found) == 1
    row = stored(database, model)
    assert (row.head, row.train_count + row.holdout_count, row.quarantined_count) == (40_005, 40_004, 1)
    assert gap_free(runs(database, model), row.head)
    with database.read() as session:
        assert (quarantined_versions(session, row), count_returned(session, row)) == ({}, 1)
        entries = session.scalars(
            select(AuditEntry).where(AuditEntry.model == model.name).order_by(AuditEntry.id)
        ).all()
    assert [entry.counts for entry in entries[:4]] == [{"accepted": 1}] * 3 + [{"accepted": 2, "quarantined": 1}]
    assert {(entry.actor, entry.client, entry.request_id) for entry in entries} == {("k1", "192.0.2.7", "request")}
    assert all(now() - entry.at < timedelta(minutes=5) for entry in entries)


def test_accepted_people_are_reported_and_refused_ones_are_not_stored(
    database: Database, settings: Settings, person: str
) -> None:
    model = new_model(database)
    with database.write() as session:
        hook = Webhook(id=str(uuid.uuid4()), url="https://receiver.example/", events=["subject.returned"], secret=b"")
        session.add(hook)
        webhook = hook.id
    rows = [Row("a", subject="somebody"), Row("b", subject=person)]
    erase(database, person)
    with pytest.raises(Conflict) as refused:
        add(database, model, rows, screen_of(settings, "refuse"))
    assert (refused.value.code, [error["loc"] for error in refused.value.errors]) == (
        "subject_returned",
        [["examples", 1]],
    )
    assert stored(database, model).head == 0
    assert add(database, model, rows, screen_of(settings, "accept")) == Added(2, 0, 1, 2)
    with database.write() as session:
        bodies = session.scalars(select(Delivery.body).where(Delivery.webhook_id == webhook)).all()
        session.delete(session.get_one(Webhook, webhook))
    assert [json.loads(body)["data"] for body in bodies] == [{"model": model.name, "examples": 1, "quarantined": 0}]


def test_suppression_hashes_expire_and_need_the_secret(database: Database, settings: Settings, person: str) -> None:
    erase(database, person)
    subject = subject_hash(person, SECRET)
    hashed = suppressions.hash_of(subject, settings.secret)
    assert hashed != suppressions.hash_of(subject, b"another secret")
    with database.write() as session:
        [row] = session.scalars(select(Suppression).where(Suppression.hash == hashed))
        assert timedelta(days=364) < row.expires_at - now() < timedelta(days=366)
        suppressions.delete_expired(session)
        assert suppressions.find(session, [hashed])[0] == {hashed}
        session.execute(update(Suppression).where(Suppression.hash == hashed).values(expires_at=now()))
        session.flush()
        suppressions.delete_expired(session)
        assert suppressions.find(session, [hashed])[0] == set()
