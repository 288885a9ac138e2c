"""Lists that the service returns page by page, as iterators that can be collected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar

from amend.responses import ResponseList

T = TypeVar("T")


class Listing(Iterator[T], Generic[T]):
    """An iterator over the items of a list. Each page is requested when it is needed."""

    def __init__(self, items: Iterator[T]) -> None:
        self.items = items

    def __next__(self) -> T:
        return next(self.items)

    def to_list(self) -> ResponseList[T]:
        """All items that are left."""
        return ResponseList(self)

    def to_pandas(self) -> Any:
        """A frame with one row for each item that is left."""
        return self.to_list().to_pandas()


class AsyncListing(AsyncIterator[T], Generic[T]):
    """As `Listing`, but with ``async for``."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self.items = items

    async def __anext__(self) -> T:
        return await anext(self.items)

    async def to_list(self) -> ResponseList[T]:
        """All items that are left."""
        return ResponseList([item async for item in self])

    async def to_pandas(self) -> Any:
        """A frame with one row for each item that is left."""
        return (await self.to_list()).to_pandas()
