"""Handling bodies in threads: large ones a few at a time, since each takes several times the memory of its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

LARGE_BODY_BYTES = 2**22
LARGE_BODIES = anyio.CapacityLimiter(4)
"""How many large bodies are handled at the same time."""


async def run_for_body(body: bytes, act: Callable[[], T]) -> T:
    """Call `act`, which handles a body, in a thread; returns what it returns."""
    if len(body) > LARGE_BODY_BYTES:
        return await run_large(act)
    return await run_in_threadpool(act)


async def run_large(act: Callable[[], T]) -> T:
    """Call `act` in one of the few threads for large bodies; also for a body that grows when it is unpacked."""
    return await run_sync(act, limiter=LARGE_BODIES)
