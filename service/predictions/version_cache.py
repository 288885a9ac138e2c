"""The versions that this process has in memory, and which of them is the champion.

The champion is looked up in the database at most once in `cache_seconds`, and after every response that may have
mentioned a new one (`MonotonicReads`); so is the policy's threshold. Weights are loaded once, and evicted when they are
not used, so that those of a purged version do not stay in memory.
"""

import asyncio
import threading
import time
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from core.errors import Conflict
from core.inference.loaded_model import LoadedModel
from core.kprior import State
from core.kprior.state.posterior import LatePosterior
from core.models import catalog
from core.models.policy import policy_of
from core.versions.queries import find_version, is_withdrawn, require_in_use
from service.context import Context
from service.http.auth import Caller
from service.parsing.inputs import Inputs, inputs_of

EVICT_AFTER_SECONDS = 30.0
"""Time without use. The cache is checked as often, so that an unused version is evicted within twice this time."""
MAX_VERSIONS = 32
"""Maximum number of versions in memory."""
Key = tuple[int, int]
"""Id of the model and number of the version."""


@dataclass
class CachedVersion:
    """A version in memory with the parser of its inputs."""

    model: LoadedModel
    inputs: Inputs
    posterior: LatePosterior
    confirmed: float
    """When it was last looked up in the database."""


class VersionCache:
    """One per process."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.loaded: dict[Key, CachedVersion] = {}
        self._loading: dict[Key, threading.Lock] = {}

    async def get(self, name: str, version: int | None, caller: Caller) -> CachedVersion:
        """The given version or the champion. Uses a thread only if a database query is needed."""
        cached = self.get_cached(name, version, caller)
        return await run_in_threadpool(self.find, name, version, caller) if cached is None else cached

    def get_cached(self, name: str, version: int | None, caller: Caller) -> CachedVersion | None:
        """The version, if the cache has it and no database query is needed."""
        if caller.models is not None and name not in caller.models:
            return None
        key: Key | None = self.context.version_keys.get((name, version))
        return None if key is None else self.loaded.get(key)

    def find(self, name: str, version: int | None, caller: Caller) -> CachedVersion:
        """The given version or the champion. Raises Conflict if there is no champion."""
        asked = time.monotonic()
        with self.context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            if version is None and model.champion is None:
                message = "The model has no champion yet. Train it with an adaptation."
                if is_withdrawn(session, model):
                    message = (
                        "The model was withdrawn because it has no training examples left. Add examples and adapt it."
                    )
                raise Conflict("champion_missing", message)
            row = find_version(session, model, version or model.champion or 0)
            require_in_use(row)
            key, file, sha256 = (model.id, row.number), row.file, row.sha256
            threshold = policy_of(model).threshold
        loaded = self.loaded.get(key)
        if loaded is None:
            # one lock per version: loading a version does not delay the others
            with self._loading.setdefault(key, threading.Lock()):
                loaded = self.loaded.get(key) or self.load(key[1], file, sha256)
                self.loaded[key] = loaded
            self._loading.pop(key, None)
        loaded.confirmed = time.monotonic()
        loaded.model.threshold = threshold  # the policy may have changed since the version was loaded
        self.context.version_keys.put((name, version), key, asked)
        self.evict(loaded.confirmed)
        return loaded

    def load(self, number: int, file: str, sha256: str) -> CachedVersion:
        state = State.from_bytes(self.context.file(file, sha256))
        posterior = LatePosterior(state)
        model = LoadedModel.from_state(state, number, posterior)
        model.encode = self.context.encoders.find(model.spec)
        return CachedVersion(model, inputs_of(model.spec), posterior, time.monotonic())

    async def keep_evicting(self) -> None:
        """Evict unused versions regularly, even without requests."""
        while True:
            await asyncio.sleep(EVICT_AFTER_SECONDS)
            self.evict(time.monotonic())

    def evict(self, now: float) -> None:
        """Drop versions that were not used lately, and the least recently used above the limit."""
        recent = sorted(self.loaded.items(), key=lambda item: item[1].confirmed, reverse=True)
        self.loaded = {key: one for key, one in recent[:MAX_VERSIONS] if one.confirmed > now - EVICT_AFTER_SECONDS}
