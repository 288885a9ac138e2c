"""Keyset pagination of lists, newest first."""

from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from core.errors import AmendError, Invalid

Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])
Key = tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[str]]
"""Columns that a list is ordered by: the creation time and the id."""


def invalid_cursor() -> AmendError:
    """The error for a cursor that does not belong to the list."""
    return Invalid.at(("query", "after"), "cursor_invalid", "is not a cursor of this list; use `next` of the last page")


def page_after(query: Query, key: Key, last: tuple[datetime, str] | None, limit: int) -> Query:
    """The query for the next page, after the row with the key `last`; None: the first page."""
    if last is not None:
        query = query.where(tuple_(*key) < tuple_(*last))
    return query.order_by(*(column.desc() for column in key)).limit(limit)
