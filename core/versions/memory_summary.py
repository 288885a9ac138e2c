"""A summary of a version's memory for people: how many examples, of which classes, since when."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from core.database import Database
from core.kprior import State
from core.kprior.model.regularizers import chosen_delta
from core.kprior.model.spec import values_of
from core.ledger.passes import read_positions
from core.ledger.queries import stored_at
from core.tables.versions import Version


@dataclass(frozen=True)
class MemorySummary:
    """A version's memory."""

    size: int
    fraction: float
    classes: Sequence[tuple[str, int]]
    """Number of examples per class, largest first; empty for numbers and counts."""
    oldest: datetime | None
    """When the oldest of the examples was added."""
    chosen_delta: float | None = None
    """The penalty that training chose, if the regularizer says `auto`; read from the same file."""


def summarize_memory(database: Database, version: Version, state: State) -> MemorySummary:
    """Look up the examples that a version remembers. Deleted examples are not counted in `classes`."""
    positions, values = state.memory.key.tolist(), values_of(state.spec["target"])
    counts: list[int] = []
    with database.read() as session:
        if values:
            rows = read_positions(session, version.model_id, state.spec, positions, version.position)
            if state.spec["target"]["kind"] == "labels":
                counts = rows.y.sum(0).long().tolist()
            else:
                y = rows.y.argmax(1) if len(values) > 2 or rows.y.shape[1] > 1 else rows.y[:, 0].round().long()
                counts = y.bincount(minlength=len(values)).tolist()
        oldest = stored_at(session, version.model_id, min(positions)) if positions else None
    named = sorted(zip(map(str, values), counts, strict=False), key=lambda pair: -pair[1])
    automatic = state.spec["regularizer"].get("delta") == "auto"
    delta = chosen_delta(state.predictor) if automatic else None
    return MemorySummary(version.memory["size"], version.memory["fraction"], named, oldest, delta)
