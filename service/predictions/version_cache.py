"""The versions that this process has in memory, and which of them is the champion.

Who is champion is asked of the database at most once in `cache_seconds`, and again after any answer that may have told
of a new one (`service/http/middleware.py`); weights are read once. Weights that nobody asked for lately are dropped, so
that those of a purged version do not linger.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from core.errors import Conflict
from core.inference.loaded_model import LoadedModel
from core.kprior import State
from core.kprior.posterior import LatePosterior
from core.models import catalog
from core.versions import history
from core.versions.queries import find_version, is_withdrawn
from service.context import Context
from service.http.auth import Caller
from service.parsing.inputs import Inputs, inputs_of

EVICT_AFTER_SECONDS = 30.0
"""Without use. The cache is checked as often, so that an unused version is gone within twice as long."""
MAX_VERSIONS = 32
"""Versions in memory."""
Key = tuple[int, int]
"""A model's number and a version's."""


@dataclass
class CachedVersion:
    """A version in memory, and how its inputs are read."""

    model: LoadedModel
    inputs: Inputs
    posterior: LatePosterior
    confirmed: float
    """When the database was last asked for it."""


class VersionCache:
    """One per process."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.loaded: dict[Key, CachedVersion] = {}
        self._loading: dict[Key, threading.Lock] = {}

    async def get(self, name: str, version: int | None, caller: Caller) -> CachedVersion:
        """The version asked for, or the champion: without a thread, where no database need be asked."""
        recent = self.get_recent(name, version, caller)
        return await run_in_threadpool(self.find, name, version, caller) if recent is None else recent

    def get_recent(self, name: str, version: int | None, caller: Caller) -> CachedVersion | None:
        """The version, if what is known of it is fresh enough to need no database."""
        if caller.models is not None and name not in caller.models:
            return None
        key: Key | None = self.context.champions.get((name, version))
        return None if key is None else self.loaded.get(key)

    def find(self, name: str, version: int | None, caller: Caller) -> CachedVersion:
        """The version asked for, or the champion; Conflict if there is none."""
        asked = time.monotonic()
        with self.context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            if version is None and model.champion is None:
                message = "The model has no champion yet: train it with an adaptation."
                if is_withdrawn(session, model):
                    message = "The model was withdrawn, for its last training example has gone. Add examples: the next "
                    message += "adaptation trains it anew."
                raise Conflict("champion_missing", message)
            row = find_version(session, model, version or model.champion or 0)
            history.require_in_use(row)
            key, file, sha256 = (model.id, row.number), row.file, row.sha256
        loaded = self.loaded.get(key)
        if loaded is None:
            # one load of a version at a time; others need not wait for it
            with self._loading.setdefault(key, threading.Lock()):
                loaded = self.loaded.get(key) or self.load(key[1], file, sha256)
                self.loaded[key] = loaded
            self._loading.pop(key, None)
        loaded.confirmed = time.monotonic()
        self.context.champions.put((name, version), key, asked)
        self.evict(loaded.confirmed)
        return loaded

    def load(self, number: int, file: str, sha256: str) -> CachedVersion:
        state = State.from_bytes(self.context.file(file, sha256))
        posterior = LatePosterior(state)
        model = LoadedModel.from_state(state, number, posterior)
        return CachedVersion(model, inputs_of(model.spec), posterior, time.monotonic())

    async def keep_evicting(self) -> None:
        """Evict also while nobody asks for anything."""
        while True:
            await asyncio.sleep(EVICT_AFTER_SECONDS)
            self.evict(time.monotonic())

    def evict(self, now: float) -> None:
        """Drop what nobody asked for lately, and the longest unasked of too many."""
        recent = sorted(self.loaded.items(), key=lambda item: item[1].confirmed, reverse=True)
        self.loaded = {key: one for key, one in recent[:MAX_VERSIONS] if one.confirmed > now - EVICT_AFTER_SECONDS}
