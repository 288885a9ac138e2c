"""Work on bodies, in threads: on large ones a few at a time, since each takes several times the memory of its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

MAX_INLINE_BYTES = 2**22
"""A larger body is handled in a thread."""
LIMITER = anyio.CapacityLimiter(4)


async def work_on(body: bytes, act: Callable[[], T]) -> T:
    """What `act` makes of a body."""
    if len(body) > MAX_INLINE_BYTES:
        return await work_on_large(act)
    return await run_in_threadpool(act)


async def work_on_large(act: Callable[[], T]) -> T:
    """The same for what may become large, whatever it is now."""
    return await run_sync(act, limiter=LIMITER)
