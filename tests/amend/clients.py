"""Both clients under one interface, so that one suite tests both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from amend import AsyncClient, Client

Connect = Callable[..., Client]


class Awaited:
    """An `AsyncClient` as if it waited."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.loop = asyncio.Runner()
        self.client = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        given = getattr(self.client, name)
        if not callable(given):
            return given

        def call(*arguments: Any, **options: Any) -> Any:
            made = given(*arguments, **options)
            return self.walk(made) if isinstance(made, AsyncIterator) else self.loop.run(made)

        return call

    def walk(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(items, self)

        while (item := self.loop.run(following())) is not self:
            yield item

    def close(self) -> None:
        self.loop.run(self.client.close())
        self.loop.close()
