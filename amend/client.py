"""The two clients of Amend's REST API: :class:`Client` is synchronous, :class:`AsyncClient` asynchronous.

Their methods are in `operations`; requests and retries are described in `requests` and carried out here.
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
from amend.listings import AsyncListing, Listing
from amend.operations import Operations
from amend.requests import Call, Flow, Outcome, Pages, Pause, Run, Step

T = TypeVar("T")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)

# Seconds before each retry: in total, enough for a restart of the service.
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)
# Storing a large batch takes a while, but a missing service should be noticed quickly.
TIMEOUT = httpx.Timeout(120.0, connect=5.0)


class BaseClient(Operations, Generic[Http, Transport]):
    """Base of both clients: an address, a key, and the httpx client of the same kind."""

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
    """Synchronous client of one Amend service.

    The default of ``url`` is ``AMEND_URL``, else this machine at ``AMEND_PORT`` (8000). The default of ``key`` is
    ``AMEND_KEY``, else, for a service on this machine, ``$AMEND_HOME/admin.key``. ``pauses``: seconds before each
    retry.
    """

    _kind = httpx.Client

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow and return its result."""
        run = Run(flow)
        while run.step is not None:
            run.send(self._take(run.step))
        return run.result

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            response = self._http.send(build_request(self._http, step), stream=True)
            with closing(response):
                if step.download is None or not response.is_success:
                    response.read()
                else:
                    step.download.begin()
                    for piece in response.iter_bytes():
                        step.download.write(piece)
            return response
        except httpx.TransportError as error:
            return error

    def walk(self, pages: Pages[T]) -> Listing[T]:
        """Iterate over all items of a list. Each page is requested when it is needed."""
        return Listing(self._walk(pages))

    def _walk(self, pages: Pages[T]) -> Iterator[T]:
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
    """Asynchronous client: as :class:`Client`, but methods are awaited and lists are read with ``async for``."""

    _kind = httpx.AsyncClient

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow and return its result."""
        run = Run(flow)
        while run.step is not None:
            run.send(await self._take(run.step))
        return run.result

    async def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            response = await self._http.send(build_request(self._http, step), stream=True)
            async with aclosing(response):
                if step.download is None or not response.is_success:
                    await response.aread()
                else:
                    step.download.begin()
                    async for piece in response.aiter_bytes():
                        step.download.write(piece)
            return response
        except httpx.TransportError as error:
            return error

    def walk(self, pages: Pages[T]) -> AsyncListing[T]:
        """Iterate over all items of a list. Each page is requested when it is needed."""
        return AsyncListing(self._walk(pages))

    async def _walk(self, pages: Pages[T]) -> AsyncIterator[T]:
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
    """Create the httpx client, synchronous or asynchronous."""
    try:
        if "%" in (host := httpx.URL(url).host) or not host:  # httpx escapes characters that no host name has
            raise httpx.InvalidURL("invalid host name")
        # After the check: only a valid address tells whether the admin key may be sent there.
        headers = {"Authorization": f"Bearer {find_key(key, url)}", "Accept": "application/json"}
        return kind(
            base_url=url,
            headers=headers,
            timeout=TIMEOUT,
            transport=transport,
            # Preparing TLS takes longer than most requests.
            verify=not url.startswith("http://"),
            # A proxy from the environment is meant for other hosts, not for this machine.
            trust_env=not is_loopback(url),
        )
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise UnreachableError(f"Invalid address {url}: {error}. Expected http://HOST:PORT.") from error


def build_request(http: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    return http.build_request(
        call.method, call.path, params=dict(call.params), content=call.content, headers=dict(call.headers)
    )
