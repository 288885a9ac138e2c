"""Jobs."""

from __future__ import annotations

from datetime import datetime

from amend.responses.base import Answer, Failure


class Job(Answer, frozen=True):
    """One unit of work: ``queued``, ``running``, then ``succeeded``, ``failed`` or ``cancelled``."""

    id: str
    model: str
    kind: str
    state: str
    progress: float
    message: str
    attempts: int
    error: Failure | None
    from_position: int
    to_position: int
    version: int | None
    """The version it made."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")
