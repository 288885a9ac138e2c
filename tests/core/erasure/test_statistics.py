"""Yearly statistics, compared with counts in Python."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from statistics import median

from sqlalchemy import select

from core.database import Database
from core.erasure.due_dates import due_date
from core.erasure.statistics import yearly_statistics
from core.tables.erasures import PENDING, RESTRICTIONS, UNDONE, Erasure, ErasureState

ENDED = (ErasureState.COMPLETED, ErasureState.LIFTED, *UNDONE)


def random_request(rng: random.Random) -> Erasure:
    year = rng.choice((2023, 2024, 2026))
    received = datetime(year, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(364 * 86400))
    if rng.random() < 0.2:  # the last second of a year belongs to it, whatever the time zone
        received = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    state, due = rng.choice(list(ErasureState)), due_date(received, rng.random() < 0.3)
    ended = received + timedelta(seconds=rng.randrange(120 * 86400)) if state in ENDED else None
    return Erasure(
        id=str(uuid.UUID(int=rng.getrandbits(128))),
        token="token",
        requested_by="key",
        state=state,
        received_at=received,
        due_at=due,
        completed_at=ended,
    )


def test_statistics_equal_counts_in_python(empty_database: Database) -> None:
    rng = random.Random(7)
    with empty_database.write() as session:
        session.add_all(random_request(rng) for _ in range(400))
    with empty_database.read() as session:
        requests = session.scalars(select(Erasure)).all()
        found = {year.year: year for year in yearly_statistics(session)}
    assert sorted(found) == [2023, 2024, 2026]
    for number, year in found.items():
        ours = [request for request in requests if request.received_at.year == number]
        erasures = [request for request in ours if request.state not in RESTRICTIONS]
        days = [(r.completed_at - r.received_at).total_seconds() / 86400 for r in erasures if r.completed_at]
        assert year.received == len(erasures)
        assert year.restrictions == len(ours) - len(erasures)
        assert year.completed == sum(r.state is ErasureState.COMPLETED for r in ours)
        assert year.refused == sum(r.state is ErasureState.REFUSED for r in ours)
        assert year.withdrawn == sum(r.state is ErasureState.WITHDRAWN for r in ours)
        assert year.open == sum(r.state in PENDING for r in ours)
        assert year.extended == sum(r.due_at > due_date(r.received_at) for r in erasures)
        assert year.late == sum(r.late for r in erasures)
        assert year.median_days == round(median(days), 2)


def test_there_are_no_statistics_without_requests(empty_database: Database) -> None:
    with empty_database.read() as session:
        assert yearly_statistics(session) == []
