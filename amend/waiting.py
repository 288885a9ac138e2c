"""Waiting for jobs and erasures to finish."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeAlias, TypeVar, overload

from amend.client_methods import AsyncRunner, Runner, operation
from amend.errors import ErasureFailed, JobFailed
from amend.progress_bars import ProgressBar, is_interactive
from amend.requests import Caller, Flow, Pause, path
from amend.responses import (
    Changed,
    Erasure,
    Job,
    Key,
    Promoted,
    Removal,
    Removed,
    Replaced,
    Restriction,
    Resumed,
    ReturnedDecision,
    Webhook,
)

T = TypeVar("T", Job, Erasure)
Progress: TypeAlias = Callable[[Job], object] | bool | None
"""Called with the job every second; None: a progress bar where a person watches; True and False: always, never."""
ErasureProgress: TypeAlias = Callable[[Erasure], object] | bool | None
WithJob: TypeAlias = Changed | Promoted | Removed | Removal | Replaced | Resumed | ReturnedDecision
"""Responses that have the id of a job, or None if there was nothing to do."""

# Seconds of one long poll, which ends early when the job ends; and of one with a progress callback.
LONG_POLL_SECONDS, REPORT_SECONDS = 30, 1
# Seconds between two requests for the state of an erasure, which has no long poll.
POLL_SECONDS = 0.5


def wait_until_ended(
    poll: Callable[[float], Flow[T]], every: float, progress: Callable[[T], object] | None, timeout: float | None
) -> Flow[T]:
    """Poll until the job or erasure has ended, and return it. ``poll`` takes the seconds that it may wait for news."""
    try:
        return (yield from poll_until_ended(poll, every, progress, timeout))
    finally:
        if isinstance(progress, ProgressBar):
            progress.close()


def poll_until_ended(
    poll: Callable[[float], Flow[T]], every: float, progress: Callable[[T], object] | None, timeout: float | None
) -> Flow[T]:
    end = math.inf if timeout is None else time.monotonic() + timeout
    found = yield from poll(0)
    while True:
        if progress is not None:
            progress(found)
        if found.ended or found.state in ("held", "unmatched"):  # an erasure that waits for a decision
            return found
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{type(found).__name__} {found.id} is still {found.state} after {timeout:g} s. It continues."
            )
        found = yield from poll(min(every, left))


def reporter_of(progress: Callable[[T], object] | bool | None) -> Callable[[T], object] | None:
    """What reports the progress; None if nothing does."""
    if progress is None or isinstance(progress, bool):
        return ProgressBar() if (is_interactive() if progress is None else progress) else None
    return progress


def await_job(caller: Caller, id: str, progress: Progress, timeout: float | None) -> Flow[Job]:
    """Wait for a job to succeed and return it. Raises JobFailed if it does not."""
    shown = reporter_of(progress)
    every = LONG_POLL_SECONDS if shown is None else REPORT_SECONDS
    place = path("jobs", id)
    found = yield from wait_until_ended(
        lambda seconds: caller.ask(Job, "GET", place, wait=seconds), every, shown, timeout
    )
    if found.state != "succeeded":
        raise JobFailed(found)
    return found


def await_erasure(caller: Caller, id: str, progress: ErasureProgress, timeout: float | None) -> Flow[Erasure]:
    """Wait for an erasure to complete and return it. Raises ErasureFailed if it does not."""

    def poll(seconds: float) -> Flow[Erasure]:
        yield Pause(seconds)
        found = yield from caller.ask(Erasure, "GET", path("erasures", id))
        return found

    found = yield from wait_until_ended(poll, POLL_SECONDS, reporter_of(progress), timeout)
    if found.state != "completed":
        raise ErasureFailed(found)
    return found


class Wait(Protocol):
    """Type of ``Client.wait``: its result depends on its argument."""

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
    """Type of ``AsyncClient.wait``."""

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
    """An operation whose result type depends on its argument, which `operation` alone cannot express."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Wait: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> AsyncWait: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return super().__get__(client, owner)


def id_of(thing: Job | Erasure | Restriction | Key | Webhook | str) -> str:
    return thing if isinstance(thing, str) else thing.id
