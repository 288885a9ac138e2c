"""Keyset pagination of lists, the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from core.errors import AmendError, Invalid

Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])
Key = tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[str]]
"""Columns by which a list is ordered: when a row was created, and its id."""


def invalid_cursor() -> AmendError:
    """The error for a cursor that names no row of the list."""
    return Invalid.at(("query", "after"), "cursor_invalid", "is not a cursor of this list")


def page_after(query: Query, key: Key, last: tuple[datetime, str] | None, limit: int) -> Query:
    """The query for the next page, after the row with the key `last`; None: the first page."""
    if last is not None:
        query = query.where(tuple_(*key) < tuple_(*last))
    return query.order_by(*(column.desc() for column in key)).limit(limit)
