"""Tables as CSV files for spreadsheets."""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from starlette.responses import StreamingResponse

from core.database import utc_text

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets take text that starts with one of these for a formula, which may send data to other sites."""


class CsvResponse(StreamingResponse):
    media_type = "text/csv; charset=utf-8"

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[object]], name: str) -> None:
        attachment = f'attachment; filename="{name}"'
        super().__init__(write_lines(columns, rows), headers={"Content-Disposition": attachment})


def write_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a CSV file.

    >>> list(write_lines(["a", "b"], [["=1+1", None], ["x", True]]))
    ['a,b\\r\\n', "'=1+1,\\r\\n", 'x,yes\\r\\n']
    """
    for row in itertools.chain([columns], rows):
        yield write_line(row)


def write_line(values: Sequence[object]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow([show(value) for value in values])
    return buffer.getvalue()


def show(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return "" if value is None else value
