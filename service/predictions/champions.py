"""The versions that this process has in memory, and which of them is the champion.

Who is champion is asked of the database at most once in `cache_seconds`; weights are read once. Weights that nobody
asked for lately are dropped, so that those of a purged version do not linger.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from core.errors import Conflict
from core.ledger.passes import shape_of
from core.models import catalog
from core.versions import history
from core.versions.serving import Served
from core.versions.tables import VersionState
from service.auth import Caller
from service.context import Context
from service.inputs import Inputs, inputs_of
from service.targets import Targets

LATELY = 60.0


@dataclass
class Loaded:
    """A version in memory."""

    served: Served
    inputs: Inputs
    targets: Targets
    shape: tuple[int, ...]
    confirmed: float
    """When the database was last asked for it."""


class Champions:
    """One per process."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.loaded: dict[tuple[int, int], Loaded] = {}
        self._loading = threading.Lock()

    def known(self, name: str, version: int | None, caller: Caller) -> Loaded | None:
        """The version, if its answer is fresh enough to need no database."""
        if caller.models is not None and name not in caller.models:
            return None
        found: Loaded | None = self.context.champions.get((name, version))
        return found

    def find(self, name: str, version: int | None, caller: Caller) -> Loaded:
        """The version asked for, or the champion; Conflict if there is none."""
        with self.context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            if version is None and model.champion is None:
                raise Conflict("champion_missing", "The model has no champion yet: train it with an adaptation.")
            row = history.find(session, model, version or model.champion or 0)
            if row.state is VersionState.PURGED:
                raise Conflict("version_purged", f"Version {row.number} is purged: its weights are gone.")
            key, file, sha256 = (model.id, row.number), row.file, row.sha256
        with self._loading:
            loaded = self.loaded.get(key)
            if loaded is None:
                served = Served(row.number, self.context.store.get(file, sha256))
                spec = served.spec
                loaded = Loaded(served, inputs_of(spec), Targets(spec["target"]), shape_of(spec["input"]), 0.0)
                self.loaded[key] = loaded
            loaded.confirmed = time.monotonic()
            self.loaded = {k: v for k, v in self.loaded.items() if v.confirmed > loaded.confirmed - LATELY}
        self.context.champions.put((name, version), loaded)
        return loaded
