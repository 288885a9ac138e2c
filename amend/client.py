"""The two clients of Amend's REST API: :class:`Client` waits, :class:`AsyncClient` is awaited.

What they can do is in `operations`, how a call is made and repeated in `sansio`; here it is carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from amend.config import find_key, find_url, is_loopback
from amend.errors import UnreachableError
from amend.operations import Operations
from amend.sansio import Call, Flow, Outcome, Pages, Pause, Run, Step

T = TypeVar("T")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)

# Seconds before each repetition: enough for a restart of the service.
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)
# Storing a large batch takes a while; finding out that nobody listens must not.
TIMEOUT = httpx.Timeout(120.0, connect=5.0)


class BaseClient(Operations, Generic[Http, Transport]):
    """What both clients are made of: an address, a key, and httpx's client of their kind."""

    _kind: type[Http]

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        pauses: Sequence[float] = RETRY_SECONDS,
        transport: Transport | None = None,
    ) -> None:
        self.url, self.pauses = find_url(url), tuple(pauses)
        self._http: Http = open_http(self._kind, self.url, key, transport)


class Client(BaseClient[httpx.Client, httpx.BaseTransport]):
    """Calls one Amend service with one key; without them, the service on this machine with its admin key."""

    _kind = httpx.Client

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; its answer."""
        run = Run(flow)
        while run.step is not None:
            run.send(self._take(run.step))
        return run.answer

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            answer = self._http.send(build_request(self._http, step), stream=True)
            with closing(answer):
                if step.download is None or not answer.is_success:
                    answer.read()
                else:
                    step.download.begin()
                    for piece in answer.iter_bytes():
                        step.download.write(piece)
            return answer
        except httpx.TransportError as error:
            return error

    def walk(self, pages: Pages[T]) -> Iterator[T]:
        """All items of a list; each page is asked for when it is needed."""
        after = None
        while True:
            page = self.run(pages.page(self, after, pages.limit))
            yield from page.items
            after = page.next
            if after is None:
                return

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(BaseClient[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """As :class:`Client`; its methods are awaited, its lists walked through with ``async for``."""

    _kind = httpx.AsyncClient

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; its answer."""
        run = Run(flow)
        while run.step is not None:
            run.send(await self._take(run.step))
        return run.answer

    async def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            answer = await self._http.send(build_request(self._http, step), stream=True)
            async with aclosing(answer):
                if step.download is None or not answer.is_success:
                    await answer.aread()
                else:
                    step.download.begin()
                    async for piece in answer.aiter_bytes():
                        step.download.write(piece)
            return answer
        except httpx.TransportError as error:
            return error

    async def walk(self, pages: Pages[T]) -> AsyncIterator[T]:
        """All items of a list; each page is asked for when it is needed."""
        after = None
        while True:
            page = await self.run(pages.page(self, after, pages.limit))
            for item in page.items:
                yield item
            after = page.next
            if after is None:
                return

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def open_http(kind: Callable[..., T], url: str, key: str | None, transport: Any) -> T:
    """An httpx client of one of its two kinds."""
    try:
        if "%" in (host := httpx.URL(url).host) or not host:  # httpx escapes what no host is called
            raise httpx.InvalidURL("that is no address")
        # only now: of an address that is none, nobody can say whether the key may go there
        headers = {"Authorization": f"Bearer {find_key(key, url)}", "Accept": "application/json"}
        return kind(
            base_url=url,
            headers=headers,
            timeout=TIMEOUT,
            transport=transport,
            # Preparing for TLS takes longer than most calls.
            verify=not url.startswith("http://"),
            # A proxy from the environment is for the world outside, not for this machine.
            trust_env=not is_loopback(url),
        )
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise UnreachableError(f"cannot call {url}: {error}") from error


def build_request(http: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    return http.build_request(
        call.method, call.path, params=dict(call.params), content=call.content, headers=dict(call.headers)
    )
