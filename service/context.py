"""State that the endpoints of one process share: settings, database, store and short-lived caches."""

import math
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request

from core.database import Database
from core.encoders.loaded_encoders import FrozenEncoders
from core.erasure.receipts import write_files
from core.errors import NotFound, Unavailable
from core.kprior.model.spec import Spec
from core.models.policy import HoldoutPolicy
from core.settings import Settings
from core.suppressions import Screen
from core.versions import store_identity
from core.versions.memory_summary import MemorySummary
from core.versions.store import Store
from service.http.identity_provider import IdentityProvider
from service.http.rate_limit import RateLimit
from service.outbox_thread import OutboxSender

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Values that expire after some seconds, so that changes by other processes become visible soon."""

    def __init__(self, seconds: float, size: int = 1000) -> None:
        self.seconds, self.size = seconds, size
        self._values: dict[K, tuple[float, V]] = {}
        self._outdated = -math.inf

    def get(self, key: K) -> V | None:
        entry = self._values.get(key)
        if entry is None:
            return None
        asked, value = entry
        if asked > self._outdated and time.monotonic() < asked + self.seconds:
            return value
        self._values.pop(key, None)
        return None

    def put(self, key: K, value: V, asked: float | None = None) -> None:
        """Store a value. `asked` is the time at which the query for it started; default: now."""
        if len(self._values) >= self.size:
            self._values.clear()
        self._values[key] = (time.monotonic() if asked is None else asked, value)

    def outdate(self) -> None:
        """Invalidate every value queried before now, including the results of queries that are still running."""
        self._outdated = time.monotonic()

    def clear(self) -> None:
        self._values.clear()


@dataclass(frozen=True)
class CachedModel:
    """The properties of a model that adding examples needs."""

    id: int
    spec: Spec
    layout_position: int
    """Ledger position since which the spec has its input and target."""
    holdout: HoldoutPolicy
    challenger: int | None = None
    """Number of the version that also predicts examples without a label."""


class Context:
    """One per process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stopping = False
        """The process is shutting down: long polls must return now."""
        self.database = Database(settings)
        self.store = Store(settings.artifacts)
        self.encoders = FrozenEncoders(self.store, settings)
        self.outbox_sender = OutboxSender(self.database, settings.broker)
        self.screen = Screen(settings)
        self.identity_provider = IdentityProvider(settings) if settings.oidc_issuer else None
        self.rate_limit = RateLimit(settings.rate_limit, settings.processes)
        self.callers: TtlCache[bytes, Any] = TtlCache(settings.cache_seconds)
        self.models: TtlCache[str, CachedModel] = TtlCache(settings.cache_seconds)
        self.memories: TtlCache[str, MemorySummary] = TtlCache(3600)
        """By the hash of the version's file, so that a value never changes."""
        self.analysed: TtlCache[Any, Any] = TtlCache(30.0, size=2)
        """Models that were analysed lately, with the sample of their holdout."""
        self.version_keys: TtlCache[Any, Any] = TtlCache(settings.cache_seconds)
        self.database_metrics: TtlCache[str, bytes] = TtlCache(settings.cache_seconds)

    @cached_property
    def store_id(self) -> str:
        """Id that links the database to its store."""
        return store_identity.identify(self.database, self.store)

    def file(self, name: str, sha256: str) -> bytes:
        """Read the file of a version that the database lists as in use."""
        try:
            return self.store.get(name, sha256)
        except NotFound as error:
            message = "The version's file is missing from the store: wrong store, or the version was just purged."
            raise Unavailable("version_missing", message) from error

    def write_register_files(self) -> None:
        """Write the files of new leaves of the register, unless the store is down: the next tick repeats it."""
        with suppress(Unavailable):
            write_files(self.database, self.store)

    def close(self) -> None:
        self.encoders.close()
        self.outbox_sender.close()
        self.database.close()


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def get_context(request: Request) -> Context:
    # async, because FastAPI runs plain functions in a thread
    return context_of(request)


ContextDep = Annotated[Context, Depends(get_context)]
