"""Pagination of lists: `{"items": [...], "next": cursor}`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from core.paging import invalid_cursor

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on the page.")]
After = Annotated[str | None, Query(max_length=200, description="Cursor: the `next` of the previous page.")]


class Page(BaseModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")


def page_of(rows: Sequence[R], limit: int, item: Callable[[R], T], cursor: Callable[[R], object]) -> Page[T]:
    """A page of up to `limit + 1` rows. The additional row shows that there is a next page."""
    shown = rows[:limit]
    return Page(items=[item(row) for row in shown], next=str(cursor(shown[-1])) if len(rows) > limit else None)


def parse_cursor(after: str | None, default: int) -> int:
    """Parse a numeric cursor."""
    if after is None:
        return default
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise invalid_cursor()
    return int(after)
