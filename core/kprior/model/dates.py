"""Dates and booleans as numbers: days since 1970-01-01, and 1 or 0.

The service and published models use these functions, so that they agree.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from .categories import spell, spellings_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DAY, LAST_DAY = -719162.0, 2932896.75
"""First and last day that has a date, in the years 1 and 9999; the last one as a float32."""
ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(\.\d+)? ?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII | re.IGNORECASE
)
UNITS = [timedelta(seconds=seconds) for seconds in (3600, 1800, 900, 300, 60, 1)]
EXPECTED_DATE = "expected a date of the years 1 to 9999, such as 2024-03-05 or 2024-03-05T14:30:00Z"
EXPECTED_BOOLEAN = "expected true or false"
BOOLEANS = {"": math.nan, **spellings_of(["false", "true"])}
"""Texts that mean 1 and 0; an empty text is a missing value, as in CSV."""


def days_of(value: object) -> float:
    """Convert a date, a datetime or its ISO text to days since 1970; without a time zone it is taken as UTC.

    >>> days_of("1970-01-11"), days_of("1970-01-02T12:00:00Z"), days_of("1970-01-02 12:00+12:00")
    (10.0, 1.5, 1.0)
    """
    text = value.isoformat() if isinstance(value, date) else value
    found = ISO.fullmatch(text) if isinstance(text, str) else None
    if text == "":
        return math.nan
    if found is None:
        raise ValueError(EXPECTED_DATE)
    day, time, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time or '00:00'}{(fraction or '')[:7]}{(zone or 'Z').upper()}")
        days = (moment - EPOCH) / timedelta(days=1)
    except (ValueError, OverflowError):
        raise ValueError(EXPECTED_DATE) from None
    if days < FIRST_DAY:
        raise ValueError(EXPECTED_DATE)
    return min(days, LAST_DAY)


def format_days(days: float, same: Callable[[float], bool]) -> str:
    """Format a number of days as ISO text; a fraction as the roundest time that is the `same`.

    >>> format_days(10.0, lambda days: True), format_days(-0.501, lambda days: abs(days + 0.501) < 0.002)
    ('1970-01-11', '1969-12-31T12:00:00Z')
    """
    moment = EPOCH + timedelta(days=days)
    if days == math.floor(days):
        return moment.date().isoformat()
    for unit in UNITS:
        found = EPOCH + round((moment - EPOCH) / unit) * unit
        if same((found - EPOCH) / timedelta(days=1)):
            moment = found
            break
    return moment.isoformat().replace("+00:00", "Z")


def truth_of(value: object) -> float:
    """Convert a boolean to a number: True, 1 and their texts become 1.

    >>> truth_of(True), truth_of(0.0), truth_of("True")
    (1.0, 0.0, 1.0)
    """
    try:
        return BOOLEANS[spell(value)]
    except (KeyError, ValueError):
        raise ValueError(EXPECTED_BOOLEAN) from None
