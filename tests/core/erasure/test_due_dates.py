"""Due dates: the same day of a later month, or its last day."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.erasure.due_dates import months_after

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("day", "months", "due"),
    [
        ("2026-01-31", 1, "2026-02-28"),
        ("2028-01-31", 1, "2028-02-29"),
        ("2026-01-30", 1, "2026-02-28"),
        ("2026-11-30", 3, "2027-02-28"),
        ("2026-12-31", 1, "2027-01-31"),
        ("2026-12-15", 12, "2027-12-15"),
        ("2026-08-31", 1, "2026-09-30"),
        ("2026-02-28", 1, "2026-03-28"),
    ],
)
def test_the_last_day_of_a_shorter_month(day: str, months: int, due: str) -> None:
    assert months_after(datetime.fromisoformat(day), months) == datetime.fromisoformat(due)


@given(MOMENTS, st.integers(0, 36))
def test_the_day_is_kept_where_the_month_has_it(moment: datetime, months: int) -> None:
    due = months_after(moment, months)
    assert (due.year - moment.year) * 12 + due.month - moment.month == months
    assert due.timetz() == moment.timetz()
    assert due.day == moment.day or due.day == calendar.monthrange(due.year, due.month)[1] < moment.day


@given(MOMENTS, MOMENTS, st.integers(0, 36))
def test_a_later_request_is_not_due_earlier(one: datetime, other: datetime, months: int) -> None:
    first, second = sorted((one, other))
    if first.date() != second.date():
        assert months_after(first, months).date() <= months_after(second, months).date()
