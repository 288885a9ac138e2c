"""What the endpoints of one process share: settings, database, store, and short-lived caches."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request

from core.database import Database
from core.errors import NotFound, Unavailable
from core.kprior.model.spec import Spec
from core.settings import Settings
from core.versions import store_identity
from core.versions.remembered import MemorySummary
from core.versions.store import Store
from service.http.rate_limit import RateLimit
from service.outbox_sender import OutboxSender

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values that may be used again for a moment. Other processes' changes show after that moment at the latest."""

    def __init__(self, seconds: float, size: int = 1000) -> None:
        self.seconds, self.size = seconds, size
        self._values: dict[K, tuple[float, V]] = {}
        self._outdated = -math.inf

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        asked, value = found
        if asked > self._outdated and time.monotonic() < asked + self.seconds:
            return value
        self._values.pop(key, None)
        return None

    def put(self, key: K, value: V, asked: float | None = None) -> None:
        """Keep a value; `asked` is when the database began to be asked for it, now if not given."""
        if len(self._values) >= self.size:
            self._values.clear()
        self._values[key] = (time.monotonic() if asked is None else asked, value)

    def outdate(self) -> None:
        """Use nothing any more that was asked for before now: also what somebody else, who asked, has yet to put."""
        self._outdated = time.monotonic()

    def clear(self) -> None:
        self._values.clear()


@dataclass(frozen=True)
class RecentModel:
    """What adding examples needs to know of a model."""

    id: int
    spec: Spec
    """With the input and the target that it had a moment ago."""
    layout: int
    """Since when it has them."""
    share: float
    """Of examples that are held out; may have changed."""


class Context:
    """One per process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stopping = False
        """The process was told to end: whoever waits should answer now."""
        self.database = Database(settings)
        self.store = Store(settings.artifacts)
        self.outbox_sender = OutboxSender(self.database, settings.broker)
        self.rate_limit = RateLimit(settings.rate_limit / settings.processes)
        self.callers: Recent[bytes, Any] = Recent(settings.cache_seconds)
        self.models: Recent[str, RecentModel] = Recent(settings.cache_seconds)
        self.memories: Recent[str, MemorySummary] = Recent(3600)
        """Of versions that somebody looked at: what they remember does not change."""
        self.champions: Recent[Any, Any] = Recent(settings.cache_seconds)
        self.figures: Recent[str, bytes] = Recent(settings.cache_seconds)

    @cached_property
    def store_id(self) -> str:
        """By which the database knows its store."""
        return store_identity.mark(self.database, self.store)

    def file(self, name: str, sha256: str) -> bytes:
        """The file of a version that is in use, as the database says."""
        try:
            return self.store.get(name, sha256)
        except NotFound as error:
            message = "The store does not have the version's file: is it the right store? Or it was just purged."
            raise Unavailable("version_missing", message) from error

    def close(self) -> None:
        self.outbox_sender.close()
        self.database.close()


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def get_context(request: Request) -> Context:
    # async: a plain function would be sent to a thread
    return context_of(request)


ContextDep = Annotated[Context, Depends(get_context)]
