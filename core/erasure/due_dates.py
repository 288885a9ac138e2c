"""When an erasure request is due: one month after receipt, or three if it is extended in time (GDPR Art. 12(3))."""

from datetime import datetime

from dateutil.relativedelta import relativedelta


def months_after(moment: datetime, months: int) -> datetime:
    """The same day and time a number of months later, or the last day of a shorter month.

    >>> months_after(datetime(2026, 1, 31), 1)
    datetime.datetime(2026, 2, 28, 0, 0)
    """
    due: datetime = moment + relativedelta(months=months)
    return due


def due_date(received_at: datetime, extended: bool = False) -> datetime:
    return months_after(received_at, 3 if extended else 1)


def may_extend(received_at: datetime, at: datetime) -> bool:
    """Whether an extension at this time is within the first month."""
    return at <= months_after(received_at, 1)
