"""The details of a person's request, before it is stored."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class RequestDetails:
    """A person's request."""

    subject: bytes
    """Keyed hash of the person's first identifier."""
    reason: str | None = None
    received_at: datetime | None = None
    hold: bool = False
    reference: str | None = None
    """The caller's own number for the request. Only the register has it, until its record expires."""
    aliases: tuple[bytes, ...] = ()
    """Keyed hashes of the person's other identifiers."""
    due_at: datetime | None = None
    """The due date of a request that is repeated; otherwise it follows from the date of receipt."""
    repeats: str | None = None
    """Id of the erasure that is repeated after a restore."""
    near_matches: int = 0
    """Number of similar spellings under which there are examples, and that are not among the identifiers."""

    @property
    def subjects(self) -> list[bytes]:
        """All identifiers, each once."""
        return list(dict.fromkeys((self.subject, *self.aliases)))
