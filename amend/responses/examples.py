"""Examples that were added, corrected, and removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from amend.responses.base import Answer


class Added(Answer, frozen=True):
    """What came of adding examples. ``duplicates`` were there already, with the same content."""

    accepted: int = 0
    duplicates: int = 0
    first_position: int | None = None
    last_position: int | None = None

    def __add__(self, later: Added) -> Added:
        first = later.first_position if self.first_position is None else self.first_position
        last = self.last_position if later.last_position is None else later.last_position
        return Added(self.accepted + later.accepted, self.duplicates + later.duplicates, first, last)


class Replaced(Answer, frozen=True):
    """What came of correcting examples. ``unchanged`` were so already; ``job`` adapts the model, if there is any."""

    replaced: int = 0
    unchanged: int = 0
    position: int = 0
    job: str | None = None

    def __add__(self, later: Replaced) -> Replaced:
        replaced, unchanged = self.replaced + later.replaced, self.unchanged + later.unchanged
        return Replaced(replaced, unchanged, later.position, later.job or self.job)


class Example(Answer, frozen=True):
    """A stored example. Its subject is not shown: only a keyed hash of it is stored."""

    id: str
    x: Any
    y: int | float | str
    split: str
    position: int
    weight: float = 1.0


class Removed(Answer, frozen=True):
    """What came of a removal; ``job`` makes the model forget, and is None while nothing was ever trained."""

    id: str
    removed: int
    unknown: list[str]
    position: int
    job: str | None


class Removal(Answer, frozen=True):
    """A removal, later: unknown names are counted, not kept."""

    id: str
    model: str
    removed: int
    unknown_count: int
    position: int
    job: str | None
    created_at: datetime
