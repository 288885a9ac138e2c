"""Yearly statistics of data subject requests: erasures, restrictions, access and corrections."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import ConfigDict, with_config
from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.erasure.due_dates import due_date
from core.register.records import canonical
from core.tables.erasures import PENDING, RESTRICTIONS, Erasure, ErasureState
from core.tables.register import Leaf, RecordKind

SECONDS_PER_DAY = 86400
MAX_MONTH_DAYS = 31
"""A request whose due date is later than this was extended: to three months."""


def seconds_of(column: InstrumentedAttribute[Any]) -> sa.Extract:
    """A time in seconds, on both databases."""
    return sa.extract("epoch", column)


YEAR, RECEIVED = sa.extract("year", Erasure.received_at), seconds_of(Erasure.received_at)
NO_REQUESTS = dict.fromkeys(
    ("received", "completed", "refused", "withdrawn", "open", "extended", "late", "restrictions"), 0
)


@with_config(ConfigDict(use_attribute_docstrings=True))
@dataclass(frozen=True)
class YearStatistics:
    """Numbers of the requests that were received in one year (UTC)."""

    year: int
    received: int
    """Erasure requests, whatever their outcome."""
    completed: int
    refused: int
    withdrawn: int
    open: int
    extended: int
    """Erasure requests whose due date was extended."""
    late: int
    """Erasure requests that ended after their due date."""
    median_days: float | None
    """Median number of days from receipt to the end of an erasure request; null if none has ended."""
    restrictions: int
    """Restrictions of processing."""
    accesses: int
    """Exports and reports of a person's data, as long as the register keeps their records."""
    corrections: int
    """Corrections of a person's examples, as long as the register keeps their records."""


def is_extended(received_at: datetime, due_at: datetime) -> bool:
    """Whether the due date of a request was extended."""
    return due_at > due_date(received_at)


def yearly_statistics(session: Session) -> list[YearStatistics]:
    """The statistics of all years with requests, newest first. The database counts: there may be many requests."""
    counts, medians = count_requests(session), median_days(session)
    records = {kind: count_records(session, kind) for kind in (RecordKind.EXPORTED, RecordKind.CORRECTED)}
    years = sorted({*counts, *(year for found in records.values() for year in found)}, reverse=True)
    return [
        YearStatistics(
            year=year,
            **counts.get(year, NO_REQUESTS),
            median_days=medians.get(year),
            accesses=records[RecordKind.EXPORTED].get(year, 0),
            corrections=records[RecordKind.CORRECTED].get(year, 0),
        )
        for year in years
    ]


def count_requests(session: Session) -> dict[int, dict[str, int]]:
    """Numbers of requests by the year of receipt, under the names of `YearStatistics`."""
    erasure, ended = Erasure.state.not_in(RESTRICTIONS), Erasure.completed_at.is_not(None)
    conditions = {
        "received": erasure,
        "completed": Erasure.state == ErasureState.COMPLETED,
        "refused": Erasure.state == ErasureState.REFUSED,
        "withdrawn": Erasure.state == ErasureState.WITHDRAWN,
        "open": Erasure.state.in_(PENDING),
        "extended": sa.and_(erasure, seconds_of(Erasure.due_at) - RECEIVED > MAX_MONTH_DAYS * SECONDS_PER_DAY),
        "late": sa.and_(erasure, ended, Erasure.completed_at > Erasure.due_at),
        "restrictions": Erasure.state.in_(RESTRICTIONS),
    }
    columns = [func.count(sa.case((condition, 1))) for condition in conditions.values()]
    found = session.execute(select(YEAR, *columns).group_by(YEAR))
    return {int(year): dict(zip(conditions, counts, strict=True)) for year, *counts in found}


def median_days(session: Session) -> dict[int, float]:
    """The median number of days that ended erasure requests took, by the year of receipt."""
    seconds = sa.cast(seconds_of(Erasure.completed_at) - RECEIVED, sa.Float)
    rank = func.row_number().over(partition_by=YEAR, order_by=seconds).label("rank")
    count = func.count().over(partition_by=YEAR).label("count")
    ended = (Erasure.state.not_in(RESTRICTIONS), Erasure.completed_at.is_not(None))
    ranked = select(YEAR.label("year"), seconds.label("seconds"), rank, count).where(*ended).subquery()
    # the middle one, or the two in the middle
    middle = (2 * ranked.c.rank).between(ranked.c.count, ranked.c.count + 2)
    query = select(ranked.c.year, func.avg(ranked.c.seconds)).where(middle).group_by(ranked.c.year)
    return {int(year): round(float(value) / SECONDS_PER_DAY, 2) for year, value in session.execute(query)}


def count_records(session: Session, kind: RecordKind) -> dict[int, int]:
    """The number of records of a kind about people, by year. Records about a bundle belong to an erasure."""
    named, year = f"%{canonical({'kind': kind.value})[1:-1]}%", sa.extract("year", Leaf.created_at)
    query = select(year, func.count()).where(Leaf.record.like(named), Leaf.erasure_id.is_(None)).group_by(year)
    return {int(found): count for found, count in session.execute(query)}
