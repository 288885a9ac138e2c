"""Runs the handling of bodies in threads: only a few large bodies at a time, because each takes several times its size
in memory.
"""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

LARGE_BODY_BYTES = 2**22
LARGE_BODIES = anyio.CapacityLimiter(4)
"""Limits how many large bodies are handled at the same time."""


async def run_for_body(body: bytes, act: Callable[[], T]) -> T:
    """Call `act`, which handles this body, in a thread."""
    if len(body) > LARGE_BODY_BYTES:
        return await run_large(act)
    return await run_in_threadpool(act)


async def run_large(act: Callable[[], T]) -> T:
    """Call `act` in one of the few threads for large bodies. Also used for decompression, where a small body grows."""
    return await run_sync(act, limiter=LARGE_BODIES)
