"""Event times of examples, as callers send them: RFC 3339 text, or timestamps of Arrow and Parquet."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid
from core.ledger.batch import to_times
from service.parsing import columns

ERROR_CODE = "time_invalid"
ERROR_MESSAGE = "must be an RFC 3339 time, such as 2026-03-01T09:00:00Z"
EARLIEST, LATEST = np.datetime64("1900-01-01", "us"), np.datetime64("2200-01-01", "us")
Times = NDArray[np.datetime64]


def from_texts(given: Sequence[str | None], field: str) -> Times | None:
    """RFC 3339 texts -> (n,) microseconds, UTC, NaT where none is given; None: none is given at all.

    Times without a time zone are UTC.
    """
    if given.count(None) == len(given):
        return None
    moments = []
    for i, text in enumerate(given):
        try:
            moment = None if text is None else datetime.fromisoformat(text)
        except ValueError:
            raise Invalid.at((field, i, "time"), ERROR_CODE, ERROR_MESSAGE) from None
        moments.append(moment.replace(tzinfo=moment.tzinfo or UTC) if moment is not None else None)
    try:
        return check(to_times(moments), field)
    except OverflowError:  # a time zone beyond the first or the last year
        raise Invalid.at((field, 0, "time"), ERROR_CODE, ERROR_MESSAGE) from None


def from_column(column: pa.ChunkedArray, field: str) -> Times | None:
    """A column of texts or timestamps; timestamps without a time zone are UTC."""
    array = columns.to_array(column, field, "time")
    if array.null_count == len(array):
        return None
    if columns.is_text(array.type):
        return from_texts(array.to_pylist(), field)
    if not columns.is_date(array.type):
        raise Invalid.at((field, 0, "time"), ERROR_CODE, f"{ERROR_MESSAGE}; got {array.type}")
    try:
        moments = array.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        raise Invalid.at((field, 0, "time"), ERROR_CODE, ERROR_MESSAGE) from None
    return check(moments.astype("M8[us]"), field)


def check(times: Times, field: str) -> Times:
    bad = ~np.isnat(times) & ~((times >= EARLIEST) & (times < LATEST))
    if bad.any():
        raise Invalid.at((field, int(bad.argmax()), "time"), ERROR_CODE, "must be between the years 1900 and 2200")
    return times
