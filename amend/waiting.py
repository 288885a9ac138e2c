"""Waiting for what goes on without us: jobs and erasures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeAlias, TypeVar, overload

from amend.responses import Erasure, Job, Key, Webhook
from amend.sansio import AsyncRunner, Flow, Runner, operation

T = TypeVar("T", Job, Erasure)
Progress: TypeAlias = Callable[[Job], object] | None


def wait_until_ended(
    poll: Callable[[float], Flow[T]], every: float, progress: Callable[[T], object] | None, timeout: float | None
) -> Flow[T]:
    """What ``poll`` finds, once it has ended. ``poll`` is given the seconds that it may take to find something new."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    found = yield from poll(0)
    while True:
        if progress is not None:
            progress(found)
        if found.ended or found.state == "held":  # which only an approval ends
            return found
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{type(found).__name__.lower()} {found.id} is still {found.state}")
        found = yield from poll(min(every, left))


class Wait(Protocol):
    """How a client waits for a job that there may be, or not."""

    @overload
    def __call__(self, job: Job | str, *, progress: Progress = None, timeout: float | None = None) -> Job: ...
    @overload
    def __call__(self, job: None, *, progress: Progress = None, timeout: float | None = None) -> None: ...
    @overload
    def __call__(
        self, job: Job | str | None, *, progress: Progress = None, timeout: float | None = None
    ) -> Job | None: ...


class AsyncWait(Protocol):
    """The same, awaited."""

    @overload
    async def __call__(self, job: Job | str, *, progress: Progress = None, timeout: float | None = None) -> Job: ...
    @overload
    async def __call__(self, job: None, *, progress: Progress = None, timeout: float | None = None) -> None: ...
    @overload
    async def __call__(
        self, job: Job | str | None, *, progress: Progress = None, timeout: float | None = None
    ) -> Job | None: ...


class wait_operation(operation[..., Job | None]):  # noqa: N801 - used as a decorator
    """An operation whose answer is None only if it was given None: a type that `operation` alone cannot tell."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Wait: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> AsyncWait: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return super().__get__(client, owner)


def id_of(thing: Job | Erasure | Key | Webhook | str) -> str:
    return thing if isinstance(thing, str) else thing.id
