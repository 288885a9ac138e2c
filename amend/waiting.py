"""Waiting for what goes on without us: jobs and erasures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeAlias, TypeVar, overload

from amend.errors import ErasureFailed, JobFailed
from amend.responses import Changed, Erasure, Job, Key, Removal, Removed, Replaced, Resumed, Webhook
from amend.sansio import AsyncRunner, Caller, Flow, Pause, Runner, operation, path

T = TypeVar("T", Job, Erasure)
Progress: TypeAlias = Callable[[Job], object] | None
ErasureProgress: TypeAlias = Callable[[Erasure], object] | None
WithJob: TypeAlias = Changed | Removed | Removal | Replaced | Resumed
"""Answers that name a job, or None where there was nothing to do."""

# Seconds of one long poll. It is answered when the job ends; with a callback this is how often it is called.
LONG_POLL_SECONDS, REPORT_SECONDS = 30, 1
# Seconds between two questions how an erasure stands.
POLL_SECONDS = 0.5


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


def await_job(caller: Caller, id: str, progress: Progress, timeout: float | None) -> Flow[Job]:
    """A job, once it has succeeded; else JobFailed."""
    every = LONG_POLL_SECONDS if progress is None else REPORT_SECONDS
    place = path("jobs", id)
    found = yield from wait_until_ended(
        lambda seconds: caller.ask(Job, "GET", place, wait=seconds), every, progress, timeout
    )
    if found.state != "succeeded":
        raise JobFailed(found)
    return found


def await_erasure(caller: Caller, id: str, progress: ErasureProgress, timeout: float | None) -> Flow[Erasure]:
    """An erasure, once it is completed; else ErasureFailed."""

    def poll(seconds: float) -> Flow[Erasure]:
        yield Pause(seconds)
        found = yield from caller.ask(Erasure, "GET", path("erasures", id))
        return found

    found = yield from wait_until_ended(poll, POLL_SECONDS, progress, timeout)
    if found.state != "completed":
        raise ErasureFailed(found)
    return found


class Wait(Protocol):
    """How a client waits for a job that there may be, or not, and for an erasure."""

    @overload
    def __call__(self, job: Job | str, *, progress: Progress = None, timeout: float | None = None) -> Job: ...
    @overload
    def __call__(self, job: None, *, progress: Progress = None, timeout: float | None = None) -> None: ...
    @overload
    def __call__(self, job: Erasure, *, progress: ErasureProgress = None, timeout: float | None = None) -> Erasure: ...
    @overload
    def __call__(
        self, job: Job | WithJob | str | None, *, progress: Progress = None, timeout: float | None = None
    ) -> Job | None: ...


class AsyncWait(Protocol):
    """The same, awaited."""

    @overload
    async def __call__(self, job: Job | str, *, progress: Progress = None, timeout: float | None = None) -> Job: ...
    @overload
    async def __call__(self, job: None, *, progress: Progress = None, timeout: float | None = None) -> None: ...
    @overload
    async def __call__(
        self, job: Erasure, *, progress: ErasureProgress = None, timeout: float | None = None
    ) -> Erasure: ...
    @overload
    async def __call__(
        self, job: Job | WithJob | str | None, *, progress: Progress = None, timeout: float | None = None
    ) -> Job | None: ...


class wait_operation(operation[..., Job | Erasure | None]):  # noqa: N801 - used as a decorator
    """An operation whose answer depends on what it was given: a type that `operation` alone cannot tell."""

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
